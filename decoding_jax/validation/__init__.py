"""Checks of values and of the types that users implement."""
