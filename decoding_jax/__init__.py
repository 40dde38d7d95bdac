"""Decoding with draft trees: exact, batched, one XLA program a generation.

What `generate` and a method stand on is imported at once; methods, processors,
canvases and searches when they are asked for. An argument that cannot be is a
`ValueError` which names it, its value and what is allowed.
"""

import typing

from decoding_jax import lazy, methods, rewards
from decoding_jax.generate import generate, stream
from decoding_jax.loop import begin, extend, Info, result, Run, step
from decoding_jax.sampling import Sampling
from decoding_jax.speculation.verifiers import pair
from decoding_jax.types import (Block, Cache, Context, DecodeState, Decoder,
                                Drafter, Draws, DraftTree, Expander, FreeLayout,
                                Generation, Head, HIDDEN_STATES,
                                LanguageModel, Layout, LogitsProcessor, Method,
                                Pair, Reward, Seen, Stats, Verdict, Verifier)

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax import canvas, drawing, processors, testing
  from decoding_jax.approximately_aligned import aprad
  from decoding_jax.draft_conditioned import dccd
  from decoding_jax.grammar_aligned import asap

# The name that rewards had when all of them were constraints.
constraints = rewards

__all__ = [
    "Block", "Cache", "Context", "DecodeState", "Decoder", "Drafter",
    "DraftTree", "Draws", "Expander", "FreeLayout", "Generation",
    "HIDDEN_STATES", "Head", "Info", "LanguageModel", "Layout",
    "LogitsProcessor", "Method", "Pair", "Reward", "Run", "Sampling", "Seen",
    "Stats", "Verdict", "Verifier", "aprad", "asap", "begin", "canvas",
    "constraints", "dccd", "drawing", "extend", "generate", "methods", "pair",
    "processors", "result", "rewards", "step", "stream", "testing",
]

lazy.attach(globals(), {"canvas": (), "drawing": (), "processors": (),
                        "testing": (),
                        "approximately_aligned": ("aprad",),
                        "draft_conditioned": ("dccd",),
                        "grammar_aligned": ("asap",)})
