"""Search over whole texts: one level of a beam, and the loop over levels."""

# Trees of stochastic beam search are made of the same levels.
from decoding_jax import beam

__all__ = ["beam"]
