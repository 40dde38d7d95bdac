"""Texts of tabular models, whose joint distribution is known exactly.

A wrong distribution within a call, or an error carried from call to call,
changes it; a chi-square test finds that.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import generate
from decoding_jax import methods
from decoding_jax.speculation import tree_decoder
from decoding_jax.types import Cache, LanguageModel, Method, Pair

# Stated in advance: with some hundred tests, one in a thousand suites fails by
# chance. A wrong distribution fails by far.
MIN_P_VALUE = 1e-5
# Cells of fewer texts are put together.
_LEAST_EXPECTED = 5


class Fit(NamedTuple):
  """The fit of texts to a distribution."""
  p_value: float  # Of chi-square
  # Total variation between the frequencies and the distribution
  distance: float
  by_chance: float  # What it is on average for samples of that distribution
  target_calls: float  # Of a text, on average

  @property
  def is_close(self) -> bool:
    """Returns whether samples of the distribution could be as far from it."""
    return self.p_value >= MIN_P_VALUE


def fit(method: Method, target, draft, rows: int = 100_000, length: int = 4,
        key=None, **kwargs) -> Fit:
  """Draws texts after token 0, and compares them with their joint distribution.

  Args:
    method: any method of temperatures above 0.
    target, draft: `[V, V]` distributions.
    rows: texts to draw.
    length: tokens of a text that count; more than a call emits, so that errors
      between calls are seen.
    key: of `dj.generate`; None for a fixed one.
    **kwargs: more arguments of `dj.generate`, none that warps the target.
  """
  counts, stats = frequencies(method, target, draft, rows, length, key,
                              **kwargs)
  probs = joint_distribution(target, 0, length)
  return Fit(p_value(counts, probs),
             float(np.abs(counts / rows - probs).sum() / 2),
             by_chance(probs, rows), float(np.mean(stats.target_calls)))


def tested_methods():
  """Returns all examples whose samples come of a drafter and a verifier."""
  return [method for family in methods.examples().values()
          for method in family if isinstance(method.sampled, Pair)]


def frequencies(method: Method, target, draft, rows: int, length: int,
                key=None, **kwargs):
  """Returns `[V] * length` counts of the texts after token 0, and `Stats`.
  Arguments as in `fit`, for any method and temperature."""
  target_lm, target_params = table_model(target)
  models = {}
  if tree_decoder.decoder_of(method, greedy=False).needs_draft:
    models["draft"], models["draft_params"] = table_model(draft)
  out = generate(
      jax.random.key(0) if key is None else key,
      jnp.zeros((rows, 1), jnp.int32), jnp.ones(rows, jnp.int32),
      method=method, target=target_lm, target_params=target_params,
      max_new_tokens=length, **models, **kwargs)
  return count(out.tokens[:, 1:1 + length], len(target)), out.stats


def count(texts, vocab_size: int):
  """Returns `[V] * L` counts of texts `[B, L]`."""
  counts = np.zeros((vocab_size,) * texts.shape[1])
  np.add.at(counts, tuple(np.asarray(texts).T), 1)
  return counts


def joint_distribution(table, first: int, length: int):
  """Returns `[V] * length`, the distribution of the tokens after `first`."""
  probs = table[first]
  for _ in range(length - 1):
    probs = probs[..., None] * table
  return probs


def p_value(counts, probs) -> float:
  """Returns the p-value of a chi-square test; rare cells are merged. A cell
  that cannot occur but did gives 0."""
  if counts[probs == 0].any():
    return 0.0
  observed, expected = _merge_rare(counts, probs * counts.sum())
  if len(expected) == 1:
    return 1.0
  return chi_square_tail(float(((observed - expected)**2 / expected).sum()),
                         len(expected) - 1)


def chi_square_tail(value: float, freedom: int) -> float:
  """Returns the probability of a larger chi-square, in float64."""
  with jax.enable_x64(True):
    return float(jax.scipy.special.gammaincc(
        jnp.float64(freedom / 2), jnp.float64(value / 2)))


def _merge_rare(observed, expected):
  """Merges rare cells into one; if that is rare too, with the next rarest. A
  single text where 0.01 are expected would prove any distribution wrong."""
  order = np.argsort(-expected, axis=None, kind="stable")
  observed, expected = observed.ravel()[order], expected.ravel()[order]
  often = int((expected >= _LEAST_EXPECTED).sum())
  if expected[often:].sum() < _LEAST_EXPECTED:
    often = max(often - 1, 0)
  return [np.append(x[:often], x[often:].sum()) for x in (observed, expected)]


def by_chance(probs, rows: int) -> float:
  """Returns the mean total variation of `rows` samples."""
  # Half the mean absolute deviation of each cell, which is nearly normal.
  return float(np.sqrt(probs * (1 - probs) / (2 * np.pi * rows)).sum())


def random_tables(vocab_size: int, target_zeros: int = 0, draft_zeros: int = 0):
  """Returns `[V, V]` float64 of a target and a drafter, the same each time."""
  rng = np.random.default_rng((vocab_size, target_zeros, draft_zeros))
  return (random_table(rng, vocab_size, target_zeros),
          random_table(rng, vocab_size, draft_zeros))


def random_table(rng, size: int, zeros: int = 0):
  """Returns `[size, size]` float64, a random distribution per row."""
  return np.stack([random_probs(rng, size, zeros) for _ in range(size)])


def random_probs(rng, size: int, zeros: int = 0):
  """Returns `[size]` float64, uneven probabilities, some of them 0."""
  probs = rng.dirichlet(np.ones(size))
  probs[rng.permutation(size)[:zeros]] = 0
  return probs / probs.sum()


def table_model(table):
  """Returns a model with the rows of `table`, and its parameters."""
  with np.errstate(divide="ignore"):
    return _language_model(len(table)), (jnp.asarray(np.log(table),
                                                     jnp.float32),)


@functools.lru_cache(maxsize=None)
def _language_model(vocab_size):
  """A model whose next token depends on the last one alone; it caches nothing.
  """
  def forward(params, tokens, positions, cache, block, slot, mask):
    del positions, cache, slot, mask
    return params[0][tokens], block

  return LanguageModel(
      lambda batch, capacity: Cache((), (), jnp.zeros(batch, jnp.int32)),
      forward, vocab_size, reads_shared=True,
      abstract_params=lambda: (jax.ShapeDtypeStruct((vocab_size,) * 2,
                                                    jnp.float32),))
