"""Does a method keep the law of the target? Sampled texts against their law.

The joint law of the first tokens of a text of a tabular model is known exactly.
Errors that carry over from call to call, and wrong laws of a call, change it;
chi-square finds them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from models import tabular

# Stated in advance: with some hundred tests, one in a thousand suites fails by
# chance. A wrong law fails by far.
MIN_P_VALUE = 1e-5
# Cells of fewer texts are put together.
_LEAST_EXPECTED = 5


class Fit(NamedTuple):
  """How texts fit a law.

  Attributes:
    p_value: of chi-square.
    distance: total variation between the frequencies and the law.
    by_chance: what it is on average for samples of that law.
    target_calls: of a text, on average.
  """
  p_value: float
  distance: float
  by_chance: float
  target_calls: float

  @property
  def is_close(self) -> bool:
    """Whether samples of the law could be as far from it."""
    return self.p_value >= MIN_P_VALUE


def check(method: dj.Method, target=None, draft=None, **kwargs) -> Fit:
  """Raises unless the sampled texts of a method have the target's law.

  Args:
    method: any method of temperatures above 0.
    target: `[V, V]`, the law of the next token by the last one; None for
      random laws of six tokens.
    draft: the same of the drafter.
    **kwargs: more arguments of `fit`.

  Returns:
    The fit, that of a law by chance.

  Raises:
    AssertionError: telling how far they are from it.
  """
  if target is None or draft is None:
    target, draft = random_tables(6)
  found = fit(method, target, draft, **kwargs)
  if not found.is_close:
    raise AssertionError(
        f"{method.name}: texts are {found.distance:.3f} away from the target's "
        f"law, of samples {found.by_chance:.3f} are expected; chi-square has "
        f"p={found.p_value:.2g}, at least {MIN_P_VALUE:g} is needed.")
  return found


def fit(method: dj.Method, target, draft, rows: int = 100_000, length: int = 4,
        key=None, **kwargs) -> Fit:
  """Draws texts behind token 0, and compares them with their joint law.

  Args:
    method: any method of temperatures above 0.
    target: `[V, V]` laws.
    draft: `[V, V]` laws.
    rows: texts to draw.
    length: tokens of a text that count; more than a call emits, so that errors
      between calls are seen.
    key: of `dj.generate`; None for a fixed one.
    **kwargs: more arguments of `dj.generate`; the law is not warped by them.

  Returns:
    A `Fit`.
  """
  counts, stats = frequencies(method, target, draft, rows, length, key,
                              **kwargs)
  law = joint_law(target, 0, length)
  return Fit(p_value(counts, law), float(np.abs(counts / rows - law).sum() / 2),
             by_chance(law, rows), float(np.mean(stats.target_calls)))


def frequencies(method: dj.Method, target, draft, rows: int, length: int,
                key=None, **kwargs):
  """How often each text of `length` tokens follows token 0.

  Args:
    method: any method.
    target: `[V, V]` laws.
    draft: `[V, V]` laws.
    rows: texts to draw.
    length: tokens of a text that are counted.
    key: of `dj.generate`; None for a fixed one.
    **kwargs: more arguments of `dj.generate`.

  Returns:
    `[V] * length` counts, and the statistics.
  """
  target_lm, target_params = table_model(target)
  draft_lm, draft_params = table_model(draft)
  out = dj.generate(
      jax.random.key(0) if key is None else key,
      jnp.zeros((rows, 1), jnp.int32), jnp.ones(rows, jnp.int32),
      method=method, target=target_lm, target_params=target_params,
      draft=draft_lm, draft_params=draft_params, max_new_tokens=length,
      **kwargs)
  counts = np.zeros((len(target),) * length)
  np.add.at(counts, tuple(np.asarray(out.tokens[:, 1:1 + length]).T), 1)
  return counts, out.stats


def joint_law(table, first: int, length: int):
  """`[V] * length`, the law of the tokens behind `first`."""
  law = table[first]
  for _ in range(length - 1):
    law = law[..., None] * table
  return law


def p_value(counts, law) -> float:
  """Chi-square of counts against a law; rare cells are put together.

  A cell that cannot occur but did gives 0.
  """
  from scipy import stats  # Takes half a second, and few programs need it.
  if counts[law == 0].any():
    return 0.0
  expected = law * counts.sum()
  often = expected >= _LEAST_EXPECTED
  observed = np.append(counts[often], counts[~often].sum())
  expected = np.append(expected[often], expected[~often].sum())
  some = expected > 0
  return float(stats.chisquare(observed[some], expected[some],
                               sum_check=False).pvalue)


def by_chance(law, rows: int) -> float:
  """Total variation between a law and so many samples of it, on average."""
  # Half the mean absolute deviation of each cell, which is nearly normal.
  return float(np.sqrt(law * (1 - law) / (2 * np.pi * rows)).sum())


def random_tables(vocab_size: int, target_zeros: int = 0, draft_zeros: int = 0):
  """`[V, V]` float64 of a target and a drafter; the same ones each time."""
  rng = np.random.default_rng((vocab_size, target_zeros, draft_zeros))
  return (random_table(rng, vocab_size, target_zeros),
          random_table(rng, vocab_size, draft_zeros))


def random_table(rng, size: int, zeros: int = 0):
  """`[size, size]` float64, a random law a row."""
  return np.stack([random_law(rng, size, zeros) for _ in range(size)])


def random_law(rng, size: int, zeros: int = 0):
  """`[size]` float64, a law of uneven probabilities, some of them 0."""
  law = rng.dirichlet(np.ones(size))
  law[rng.permutation(size)[:zeros]] = 0
  return law / law.sum()


def table_model(table):
  """A tabular model whose laws are the rows of `table`, and its parameters."""
  with np.errstate(divide="ignore"):
    return tabular.TabularLM(np.log(table))
