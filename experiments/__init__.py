"""Mains, run as `python -m experiments.<name>`, and what they share."""
