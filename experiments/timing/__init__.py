"""Measured and predicted time of forwards and methods."""
