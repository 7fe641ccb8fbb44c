"""Methods: one file for each method with its network and loss terms. Methods receive features as arguments."""
