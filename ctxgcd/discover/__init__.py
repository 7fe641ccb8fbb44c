"""Discovery of the classes of a user's own images, and prediction of the classes of new images."""
