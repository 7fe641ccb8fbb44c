"""One module per layout of images on disk."""
