"""Flags that programs share, and checks of their values."""
