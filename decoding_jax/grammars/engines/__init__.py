"""Packages that follow a grammar on the host."""
