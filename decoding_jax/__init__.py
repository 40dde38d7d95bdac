"""Decoding with draft trees: exact, batched, one XLA program a generation."""

from decoding_jax import canvas, methods, processors, rewards
from decoding_jax.generate import generate, stream
from decoding_jax.grammar_aligned import asap
from decoding_jax.sampling import Sampling
from decoding_jax.speculation.verifiers import pair
from decoding_jax.types import (Block, Cache, Context, DecodeState, Decoder,
                                Drafter, DraftTree, Expander, FreeLayout,
                                Generation, Head, LanguageModel, Layout,
                                LogitsProcessor, Method, Pair, Reward, Seen,
                                Stats, Verdict, Verifier)

# The name that rewards had when all of them were constraints.
constraints = rewards

__all__ = [
    "Block", "Cache", "Context", "DecodeState", "Decoder", "Drafter",
    "DraftTree", "Expander", "FreeLayout", "Generation", "Head",
    "LanguageModel", "Layout", "LogitsProcessor", "Method", "Pair", "Reward",
    "Sampling", "Seen", "Stats", "Verdict", "Verifier", "asap",
    "canvas", "constraints", "generate", "methods", "pair", "processors",
    "rewards", "stream",
]
