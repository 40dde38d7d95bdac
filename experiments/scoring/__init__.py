"""Scores of generated texts."""
