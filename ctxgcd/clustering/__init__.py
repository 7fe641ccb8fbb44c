"""k-means and exact nearest neighbours on frozen features."""
