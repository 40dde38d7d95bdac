"""Timed comparison of decoding systems, ours and others'."""
