"""A*-decoding: best-first search by the reward of partial texts."""

from collections.abc import Sequence
import functools
import math

import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.search import arena
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_children=2, step_length=2, expansions=4),)


def make(num_children: int, step_length: int, expansions: int,
         step_end: Sequence[int] = (), path_weight: float = 1.0) -> Method:
  """Makes A*-decoding (arXiv 2505.13672).

  The open partial text of the least path_weight * g + h is continued in
  `num_children` ways by a step, and the search ends when a complete text is the
  next one. A cost is the maximum of the reward less the reward, or minus the
  reward if it has no maximum: h is the text's own reward, g the sum of those
  of the texts that it continues. The paper's g and h are not
  public in full; path_weight=0 is greedy best-first search.

  At temperatures above 0 the steps are samples. At 0 they begin with the most
  probable tokens, and go on greedily.

  Args:
    num_children: K, steps that are tried after a text.
    step_length: tokens of a step, at most.
    expansions: texts that are continued, at most. If no text is complete by
      then, the best one is completed without a search.
    step_end: tokens that end a step, such as those with a line break.
    path_weight: of g.

  Returns:
    The method; for its statistics see `arena.decoder`. Memory grows with
    num_children * step_length * expansions tokens of a row.
  """
  values.check_positives(num_children=num_children, step_length=step_length,
                         expansions=expansions)
  values.check_number("path_weight", path_weight, 0.0)
  rules = functools.partial(
      arena.Rules, int(num_children), int(step_length), int(expansions),
      values.integers("step_end", step_end), cost=_cost,
      priority=lambda context, nodes: -(
          float(path_weight) * nodes.costs + _own_cost(context, nodes.values)),
      budget=lambda values, depths, baseline: jnp.ones_like(depths),
      stops=lambda nodes, index, baseline: buffers.take_along(
          nodes.ended, index[:, None], axis=1)[:, 0])
  return Method(
      f"a_star({num_children}x{step_length}, {expansions})",
      sampled=arena.decoder(rules(
          choose=lambda keys, context, first, i, logits: arena.sampled_tokens(
              keys, context, i, logits))),
      greedy=arena.decoder(rules(
          choose=lambda keys, context, first, i, logits: arena.distinct_tokens(
              context, i, logits)), int(num_children)))


def _own_cost(context, values):
  """Returns h of texts by their rewards."""
  maximum = context.reward.maximum
  return (maximum if math.isfinite(maximum) else 0.) - values


def _cost(context, cost, parent, values):
  """Returns g of children; the prompt's part in it is the same of all texts."""
  return jnp.broadcast_to(cost + _own_cost(context, parent), values.shape)
