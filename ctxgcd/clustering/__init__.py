"""Clustering: k-means, semi-supervised k-means, exact nearest neighbours and estimation of K."""
