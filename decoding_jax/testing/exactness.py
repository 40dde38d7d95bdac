"""Texts of tabular models, whose joint distribution is known exactly.

A wrong distribution within a call, or an error carried from call to call,
changes it; a chi-square test finds that.
"""

import functools

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


def tested_methods():
  """Returns all examples whose samples come of a drafter and a verifier."""
  return [method for family in methods.examples().values()
          for method in family if isinstance(method.sampled, Pair)]


def frequencies(method: Method, target, draft, rows: int, length: int,
                key=None, **kwargs):
  """Returns `[V] * length` counts of the texts after token 0, and `Stats`.
  `target` and `draft` are `[V, V]` distributions; `key` and `kwargs` are
  arguments of `dj.generate`."""
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
  """Returns the least p-value of the beginnings of texts, times their number.

  Cells of whole texts are many, so that their test alone misses a bias of one
  position five times as large as the one that the test of its beginnings finds.

  Args:
    counts: `[V, ..., V]`, an axis for each token of a text.
    probs: the same of the distribution.
  """
  length = np.ndim(counts)
  return min(1.0, length * min(
      chi_square(*beginnings(n, counts, probs)) for n in range(1, length + 1)))


def beginnings(n: int, *tables):
  """Returns tables of texts summed up to those of their first n tokens."""
  return [np.sum(x, axis=tuple(range(n, np.ndim(x)))) for x in tables]


def chi_square(counts, probs) -> float:
  """Returns the p-value of a chi-square test; rare cells are merged. A cell
  that cannot occur but did gives 0."""
  counts, probs = np.asarray(counts), np.asarray(probs)
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
