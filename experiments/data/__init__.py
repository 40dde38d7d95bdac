"""Texts, prompts and training examples."""
