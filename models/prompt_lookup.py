"""Prompt lookup: a drafter without parameters that copies from the text.

Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-
decoding) drafts the tokens after the last position where the newest tokens had
occurred before. Here all such positions vote, and the votes are a distribution:
so any method drafts from it, trees too, and the text keeps the distribution of
the target. It pays where a text repeats its prompt or itself: code, summaries,
dialogues.

A forward costs little more than filling its logits. But a method whose drafter
is a language model also normalises and samples a distribution over the whole
vocabulary for each node, and the target scores all nodes: where few drafts are
accepted, a large tree takes more time than it saves.
"""

import functools
import numbers

import jax
import jax.numpy as jnp

from decoding_jax import types
from models import cacheless

# What the commands call it.
NAME = "lookup"
# Factor of a position's weight for each token that agrees.
_BASE = 16.0


def language_model(vocab_size: int, ngram: int = 4) -> types.LanguageModel:
  """Returns the drafter as a language model; its parameters are `()`.

  A position where m of the newest tokens occurred, at most `ngram`, votes for
  the token after it with the weight 16^m; the later of two equal positions
  counts up to twice as much. Without any such position the distribution is
  uniform. `vocab_size` is the target's. Equal arguments give the same object.
  Raises ValueError if a number is not a positive integer.
  """
  for name, value in (("vocab_size", vocab_size), ("ngram", ngram)):
    if not isinstance(value, numbers.Integral) or value < 1:
      raise ValueError(f"{name}={value!r}: a positive integer is needed.")
  return _language_model(int(vocab_size), int(ngram))


@functools.lru_cache(maxsize=None)
def _language_model(vocab_size, ngram):
  def function(params, texts, ends):
    del params
    return jax.vmap(functools.partial(_logits, vocab_size, ngram))(texts, ends)

  return cacheless.at_ends(function, vocab_size, abstract_params=tuple)


def _logits(vocab_size, ngram, text, end):
  """Returns logits `[V]` after the token at the end of a text `[L]`."""
  places = jnp.arange(len(text))
  agrees = places < end
  agreeing = jnp.zeros(len(text))
  for back in range(ngram):
    # Tokens that are rolled in from the end are not before any position.
    same = jnp.roll(text, back) == text[jnp.maximum(end - back, 0)]
    agrees &= same & (places >= back)
    agreeing += agrees
  # Relative to the best position: 16^m itself may exceed float32.
  votes = jnp.where(
      agreeing > 0,
      _BASE**(agreeing - agreeing.max()) * (1 + places / (end + 1)), 0)
  # The last position is the end itself, which has no vote.
  tokens = jnp.roll(text, -1)
  sums = jnp.zeros(vocab_size).at[tokens].add(votes)[tokens]
  # Logarithms of the few sums, not of V; all logits are equal without votes.
  others = jnp.where(votes.any(), -jnp.inf, 0.0)
  return jnp.full(vocab_size, others).at[
      jnp.where(votes > 0, tokens, vocab_size)].set(jnp.log(sums), mode="drop")
