"""Runs of methods over prompts, their results and tables."""
