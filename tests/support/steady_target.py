"""A target in 16 bits whose distribution does not depend on its calls.

In 16 bits the logits after a text depend on the call that computes them, since
programs for other numbers of tokens round other sums. Then there is no single
distribution to compare frequencies with, and ever more texts tell one rounding
from the other. So logits that are within rounding of those of one forward are
replaced by these. Logits that are further off stay unchanged: a wrong mask, a
wrong position or a cache of rejected tokens is found as in float32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj

# Total variation. Twice what a model may differ from itself in float32 in any
# context; see `is_steady`.
TOLERANCE = 0.1


def make(target, params, logits):
  """Returns a target with logits of its contexts, and its parameters."""
  size = target.vocab_size + 1
  table = np.full((size**max(map(len, logits)), target.vocab_size), np.nan)
  for context, row in logits.items():
    table[functools.reduce(lambda n, x: n * size + x + 1, context, 0)] = row
  steady, given = dj.processors.apply(
      _processor(size), jnp.asarray(table, jnp.float32), target, params)
  return _with_early_layers(steady, target), given


def is_steady(logits, exact):
  """Returns whether rounding changes distributions little enough."""
  return float(_distance(logits, exact).max()) <= TOLERANCE / 2


def _distance(logits, others):
  """Returns the total variation between distributions."""
  return jnp.abs(jax.nn.softmax(logits) - jax.nn.softmax(others)).sum(-1) / 2


@functools.lru_cache(maxsize=None)
def _processor(size):
  """Numbers contexts in base `size`; those that are too long stay so."""
  def advance(table, number, token):
    new = number * size + token + 1
    return jnp.where(number * size < len(table), new, len(table))

  def process(table, number, logits):
    known = table[jnp.minimum(number, len(table) - 1)]
    # Of an unknown context it is NaN, which is not within the tolerance.
    is_near = (number < len(table)) & (_distance(known, logits) <= TOLERANCE)
    return jnp.where(is_near, known, logits)

  return dj.LogitsProcessor(lambda table: jnp.int32(0), advance, process,
                            reads_prompt=True)


@functools.lru_cache(maxsize=None)
def _with_early_layers(steady, target):
  """Gives a processed model the early layers of the model in it."""
  def early(layers, params, *args):
    return target.halves.early(layers, params.model, *args)

  return steady._replace(halves=target.halves._replace(early=early))
