"""Evaluation of predictions, with numpy, scipy and scikit-learn only."""
