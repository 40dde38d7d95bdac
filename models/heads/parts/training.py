"""What a head predicts in training, and with what it is compared."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from models.heads.parts import formats

# Tokens from one root of a block to the next.
STRIDE = 4


class Kind(NamedTuple):
  """A head that can be trained.

  Attributes:
    config: `(target, depth) -> config` of its sizes.
    predict: `(config, target, params, target_params, features, tokens, depth)
      -> (logits [B, L, N, V], positions [L, N])`: of the tokens that it can
      draft, and the position of the target's distribution that each is compared
      with, -1 for none. Where there is a `feature_weight`, `[B, L, N, F]` after
      them: hidden states that stand for the normed ones of the target at these
      positions.
    kept: `(target) -> layers` whose outputs it reads.
    feature_weight: what their distance counts, of what the distributions do.
    limited: `(config, count) -> config` of a head that drafts so many tokens
      alone; None if it drafts all.
    module: file of the head; set by `head_objectives`.
  """
  config: Callable[..., Any]
  predict: Callable[..., Any]
  kept: Callable[..., tuple[int, ...]] = formats.last
  feature_weight: float = 0.0
  limited: Callable[..., Any] | None = None
  module: Any = None


def of_pairs(unrolled):
  """Returns `predict` of a head that reads pairs of features and tokens.

  Args:
    unrolled: `(config, target, params, target_params, features, tokens [B, T],
      depth) -> logits [B, depth, T, V]` of the token after each; or these and
      `[B, depth, T, F]`. Those of pair t of level i are meant for t >= i.
  """
  @functools.wraps(unrolled)
  def predict(config, target, params, target_params, features, tokens, depth):
    found = unrolled(config, target, params, target_params, features,
                     tokens[:, 1:], depth)
    logits, *made = found if isinstance(found, tuple) else (found,)
    order, rounds = np.arange(logits.shape[2])[None], np.arange(depth)[:, None]
    # Each pair is the last one of a path.
    return logits, np.where(order >= rounds, order + 1, -1), *made

  return predict
