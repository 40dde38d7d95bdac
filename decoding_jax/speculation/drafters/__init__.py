"""Drafters, one a file: each proposes a whole tree a step."""

from decoding_jax.speculation.drafters.best_first_trees import best_first
from decoding_jax.speculation.drafters.language_model import of_model
from decoding_jax.speculation.drafters.masked_places import masked
from decoding_jax.speculation.drafters.successor_table import token_recycling
from decoding_jax.speculation.drafters.text_matches import (prompt_lookup,
                                                            suffix)

__all__ = ["best_first", "masked", "of_model", "prompt_lookup", "suffix",
           "token_recycling"]
