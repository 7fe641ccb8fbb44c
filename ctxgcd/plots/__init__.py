"""Figures: training curves, sensitivity curves and embeddings, as PNG files with reproducible bytes."""
