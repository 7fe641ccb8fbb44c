"""People's own images: discover their classes once, then tell those of any other image."""
