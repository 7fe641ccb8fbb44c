"""Estimates of the cost of runs before they start: views, device hours, disk and memory. Needs no data."""
