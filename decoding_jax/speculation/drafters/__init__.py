"""Drafters, one a file: each proposes a whole tree a step."""

import typing

from decoding_jax import lazy
from decoding_jax.speculation.drafters.language_model import of_model

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.speculation.drafters.adaptive_trees import (adaptive,
                                                                by_acceptance)
  from decoding_jax.speculation.drafters.best_first_trees import best_first
  from decoding_jax.speculation.drafters.copied_spans import copied_or
  from decoding_jax.speculation.drafters.draft_graph import gsd
  from decoding_jax.speculation.drafters.jacobi_window import lookahead
  from decoding_jax.speculation.drafters.masked_places import masked
  from decoding_jax.speculation.drafters.prompt_tokens import ppd
  from decoding_jax.speculation.drafters.pruned_trees import propd
  from decoding_jax.speculation.drafters.shared_nodes import shared
  from decoding_jax.speculation.drafters.successor_table import token_recycling
  from decoding_jax.speculation.drafters.text_matches import (prompt_lookup,
                                                              suffix)
  from decoding_jax.speculation.drafters.trigram_table import aded
  from decoding_jax.speculation.drafters.union_of_trees import merged

__all__ = ["adaptive", "aded", "best_first", "by_acceptance", "copied_or",
           "gsd", "lookahead", "masked", "merged", "of_model", "ppd",
           "prompt_lookup", "propd", "shared", "suffix", "token_recycling"]

lazy.attach(globals(), {
    "adaptive_trees": ("adaptive", "by_acceptance"),
    "best_first_trees": ("best_first",), "jacobi_window": ("lookahead",),
    "copied_spans": ("copied_or",), "draft_graph": ("gsd",),
    "masked_places": ("masked",),
    "union_of_trees": ("merged",), "prompt_tokens": ("ppd",),
    "pruned_trees": ("propd",), "shared_nodes": ("shared",),
    "successor_table": ("token_recycling",),
    "text_matches": ("prompt_lookup", "suffix"), "trigram_table": ("aded",),
})
