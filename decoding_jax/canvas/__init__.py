"""Masked-diffusion language models: decoding in parallel on a canvas."""

from decoding_jax.canvas import confidence, filters, methods, rules
from decoding_jax.canvas.drafts import with_drafts
from decoding_jax.canvas.generate import generate
from decoding_jax.canvas.types import Filled, MaskedModel, Method

__all__ = ["Filled", "MaskedModel", "Method", "confidence", "filters",
           "generate", "methods", "rules", "with_drafts"]
