"""Conversion of Hugging Face checkpoints, both ways."""
