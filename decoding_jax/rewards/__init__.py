"""Rewards of texts; see `types.Reward`.

    pieces = tokenizers.pieces(tokenizer)               # bytes of V tokens
    reward, params = lexical(), vocabulary(pieces)
    constraint = concepts([[["dog", "dogs"], ["catch", "caught"]]], pieces)
    evaluate(reward, params, constraint, generation, prompt_lengths)

A reward of your own is three pure functions; or `on_host`, any Python function
of texts.
"""

import typing

from decoding_jax import lazy

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.rewards.combine import evaluate, length, weighted_sum
  from decoding_jax.rewards.keyword_automaton import Vocabulary, vocabulary
  from decoding_jax.rewards.keywords import (avoided, banned, Concepts,
                                             concepts, hard_coverage, lexical)
  from decoding_jax.rewards.on_host import HostReport, host_report, on_host

__all__ = [
    "Concepts", "HostReport", "Vocabulary", "avoided", "banned", "concepts",
    "evaluate", "hard_coverage", "host_report", "length", "lexical", "on_host",
    "vocabulary", "weighted_sum",
]

lazy.attach(globals(), {
    "combine": ("evaluate", "length", "weighted_sum"),
    "keyword_automaton": ("Vocabulary", "vocabulary"),
    "keywords": ("Concepts", "avoided", "banned", "concepts", "hard_coverage",
                 "lexical"),
    "on_host": ("HostReport", "host_report", "on_host"),
})
