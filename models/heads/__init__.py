"""Heads on the target's features: drafters in place of a draft model."""
