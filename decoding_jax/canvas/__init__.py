"""Masked-diffusion language models: decoding in parallel on a canvas."""

from decoding_jax.canvas import confidence, filters, methods, rules
from decoding_jax.canvas.methods.free_dave import with_drafts
from decoding_jax.canvas.generate import generate
from decoding_jax.canvas.language_models import as_draft, as_target
from decoding_jax.canvas.types import Filled, Method
from decoding_jax.types import MaskedModel

__all__ = ["Filled", "MaskedModel", "Method", "as_draft",
           "as_target", "confidence", "filters", "generate", "methods",
           "rules", "with_drafts"]
