"""What each method is called, which class it is, and which values it reads. No torch."""
