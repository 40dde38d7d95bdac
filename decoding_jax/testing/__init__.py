"""Checks whether texts have the target's distribution, for use in tests."""
