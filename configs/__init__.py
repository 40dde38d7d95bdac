"""Configurations of the experiments; each docstring holds its command."""
