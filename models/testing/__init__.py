"""Checks of models and methods."""

from decoding_jax.testing import exactness

__all__ = ["exactness"]
