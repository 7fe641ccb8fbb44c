"""Scores from predictions: numpy, scipy and scikit-learn's metrics only."""
