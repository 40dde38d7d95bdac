"""Rewards of texts, computed on the device; see `types.Reward`.

    pieces = tokenizers.pieces(tokenizer)               # bytes of V tokens
    reward, params = lexical(), vocabulary(pieces)
    constraint = concepts([[["dog", "dogs"], ["catch", "caught"]]], pieces)
    evaluate(reward, params, constraint, generation, prompt_lengths)

A reward of your own is three pure functions.
"""

from decoding_jax.rewards.combine import evaluate, length, weighted_sum
from decoding_jax.rewards.keyword_automaton import Vocabulary, vocabulary
from decoding_jax.rewards.keywords import (avoided, banned, Concepts,
                                           concepts, hard_coverage, lexical)

__all__ = [
    "Concepts", "Vocabulary", "avoided", "banned", "concepts", "evaluate",
    "hard_coverage", "length", "lexical", "vocabulary", "weighted_sum",
]
