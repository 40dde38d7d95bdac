"""LiteSearch: best-first search with a budget of children by value."""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.search import arena, texts
from decoding_jax.types import Method
from decoding_jax.validation import values as values_lib

EXAMPLES = (dict(step_length=2, expansions=4),)

# A greedy text is good enough that is worth so much less, and a partial text
# hopeless that is worth less than this.
_LITTLE = 0.01
# Least children of a node that gets any.
_MIN_BUDGET = 2


def make(step_length: int, expansions: int = 100, step_end: Sequence[int] = (),
         confidence: float = 0.9, max_budget: int = 10,
         min_value: float = 0.8, max_leaves: int = 5,
         logits: bool = False) -> Method:
  """Makes LiteSearch (arXiv 2407.00320), for temperatures above 0.

  The value of a text is the probability that it is, or will be, right: the
  reward, or its sigmoid. The partial text of the highest value is continued by
  one step; its first child is greedy, the others are samples. How many children
  it may have is the number C of samples of which one is right with probability
  `confidence`, divided by its depth; its own value counts there together with
  the greedy text's, which counts less the deeper it is.

  A search ends with a complete text that is worth more than `min_value` and no
  less than the greedy one, with `max_leaves` complete texts, when a complete
  text is the best of all, or when no partial text is worth 0.01. The result is
  the best complete text, or the greedy one if that is better. The rules of the
  authors' code for steps that repeat or are very long are left out: they belong
  in the reward.

  Args:
    step_length: tokens of a step, at most.
    expansions: steps that are made, at most.
    step_end: tokens that end a step, such as those with a line break.
    confidence: 0 to 1.
    max_budget: children of a text, at most; 2 or more.
    min_value: value of a text that is good enough.
    max_leaves: complete texts.
    logits: whether the reward is a logit, such as a reward model's of
      preferences, whose sigmoid is the value.

  Returns:
    The method; for its statistics see `arena.decoder`.
  """
  values_lib.check_positives(step_length=step_length, expansions=expansions)
  values_lib.check_number("confidence", confidence, 0.0, 1.0)
  values_lib.check_positive("max_leaves", max_leaves)
  values_lib.check_number("min_value", min_value)
  if not values_lib.is_integer(max_budget) or max_budget < _MIN_BUDGET:
    raise ValueError(f"max_budget={max_budget!r}: an integer from {_MIN_BUDGET}"
                     " on is needed.")
  rules = arena.Rules(
      1, int(step_length), int(expansions),
      values_lib.integers("step_end", step_end),
      # Goes on greedily from a node that has no child yet.
      choose=lambda keys, context, first, i, logits: jnp.where(
          first[:, None], texts.greedy(context, i, logits),
          arena.sampled_tokens(keys, context, i, logits)),
      cost=lambda context, cost, parent, values: jnp.zeros_like(values),
      priority=lambda context, nodes: nodes.values,
      budget=functools.partial(budget, float(confidence), int(max_budget)),
      stops=functools.partial(_stops, float(min_value), int(max_leaves)),
      has_baseline=True, **({"value": jax.nn.sigmoid} if logits else {}))
  return Method(f"lite_search({step_length}, {expansions})",
                sampled=arena.decoder(rules), greedy=None)


def budget(confidence, max_budget, values, depths, baseline):
  """Returns how many children texts may have.

  With confidence 0.9 and the greedy text worth 0.5, a text at depth 1 (of the
  root, which is 0) that is worth 0.8 counts as (0.8 + 0.5 / 2) / 1.5 = 0.7:
  two samples are enough, and it may have 2 children.

  Args:
    confidence: of one right sample.
    max_budget: the most.
    values: float32 of any shape.
    depths: int32 of that shape.
    baseline: of the greedy text; broadcasts.

  Returns:
    int32 of that shape; 0 where the value is not positive.
  """
  depth = (1 + depths).astype(jnp.float32)
  both = jnp.minimum((values + baseline / depth) / (1 + 1 / depth), 1.)
  tries = jnp.arange(1, max_budget, dtype=jnp.float32)
  failed = (1 - both[..., None])**jnp.expand_dims(tries, range(values.ndim))
  count = 1 + jnp.sum(1 - failed <= confidence, axis=-1, dtype=jnp.int32)
  count = jnp.round(count.astype(jnp.float32) / depth).astype(jnp.int32)
  return jnp.where(values > 0, jnp.clip(count, _MIN_BUDGET, max_budget), 0)


def _stops(min_value, max_leaves, nodes, index, baseline):
  """Tells whether a search is over, its best node being the one of `index`."""
  leaf = nodes.used & nodes.ended
  best = jnp.where(leaf, nodes.values, -jnp.inf).max(axis=1)
  at = lambda x: buffers.take_along(x, index[:, None], axis=1)[:, 0]
  return ((best > jnp.maximum(min_value, baseline - _LITTLE)) |
          (leaf.sum(axis=1) >= max_leaves) | at(nodes.ended) |
          (index > 0) & (at(nodes.values) < _LITTLE))
