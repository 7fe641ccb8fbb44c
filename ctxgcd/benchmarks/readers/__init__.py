"""Readers: one module for each layout of images on disk."""
