"""Checks of one's own models and methods, for use in tests."""
