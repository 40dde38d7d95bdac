"""Momentum decoding: what repeats the text has to be more probable."""

import jax
import jax.numpy as jnp

from decoding_jax import programs, sampling
from decoding_jax.processors import penalties
from decoding_jax.types import NONE, LogitsProcessor
from decoding_jax.validation import values

# Longer matches would unroll into as many comparisons.
_MAX_MATCH = 64
# Less than any score of a candidate that does not repeat too much.
_FAR = 1e4


@programs.memoized
def momentum(vocab_size: int, window: int, *, resistance: float = 0.2,
             num_candidates: int = 5, max_match: int = 5) -> LogitsProcessor:
  """Resists repetition, more so the longer it goes on (arXiv 2212.02175).

  Of the most probable tokens, the one with the largest p - resistance * f(n) is
  taken, where n is the length of the longest end of prompt and text, this token
  included, that occurred before: f(n) = n, and inf for n > max_match. So a text
  may go through a sequence again, but only as long as it must. Where every
  candidate would repeat too much, the most probable one is taken.

  For temperature 0, with any method: the greedy text of the processed model is
  momentum decoding's, and a drafted tree gives several of its tokens a
  call. Its logits are these scores, so that log-probabilities of a generation
  are none of the model's.

  Args:
    vocab_size: V.
    window: only the last `window` tokens count, at most 131,072; all of them,
      if it is no less than a prompt and `max_new_tokens` together. Each slot of
      a cache has room for as many.
    resistance: alpha, of a repeated token, in units of probability.
    num_candidates: k, the most probable tokens.
    max_match: tokens in a row that may be repeated, 1 to 64.

  Returns:
    A processor without parameters, `()`.
  """
  values.check_positive("vocab_size", vocab_size)
  penalties.check_window(window)
  values.check_number("resistance", resistance, 0.0)
  values.check_positives(num_candidates=num_candidates, max_match=max_match)
  if num_candidates > vocab_size:
    raise ValueError(f"num_candidates={num_candidates}: at most vocab_size="
                     f"{vocab_size} is allowed.")
  if max_match > _MAX_MATCH:
    raise ValueError(f"max_match={max_match}: at most {_MAX_MATCH} is allowed.")

  def process(params, tokens, logits):
    del params
    penalties.check_vocabulary(vocab_size, logits, "momentum decoding")
    log_mass = jax.nn.logsumexp(logits.astype(jnp.float32))
    best, candidates = sampling.top_k(logits, num_candidates)
    lengths = _repeated(tokens, candidates, max_match)
    scores = jnp.exp(best.astype(jnp.float32) - log_mass) - resistance * lengths
    # Finite, so that the most probable of those that repeat too much is left.
    scores = jnp.where(lengths > max_match, -_FAR * (1 + jnp.arange(
        num_candidates)), scores)
    scores = jnp.where(best > -jnp.inf, scores, -jnp.inf)
    return jnp.full(vocab_size, -jnp.inf, logits.dtype).at[candidates].set(
        scores.astype(logits.dtype))

  return LogitsProcessor(init=lambda params: penalties.no_tokens(window),
                         advance=penalties.remember, process=process,
                         reads_prompt=True)


def _repeated(tokens, candidates, max_match):
  """Returns how much of the end of a text each candidate repeats, `[K]`. 0 of a
  token that is new, 1 of one that occurred after another token than the last
  one; at most max_match + 1. In `tokens [W]`, `NONE` stands before the
  first."""
  wide = jnp.concatenate([jnp.full(max_match, NONE, jnp.int32), tokens])
  same, length = tokens != NONE, jnp.ones(len(tokens), jnp.float32)
  for i in range(1, max_match + 1):
    # The token i positions before, and the i-th last one of the text.
    before, last = wide[max_match - i:-i], wide[-i]
    same &= (before == last) & (last != NONE)
    length += same
  return jnp.where(tokens[None] == candidates[:, None], length[None], 0.).max(
      axis=1)
