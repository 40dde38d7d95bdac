"""What a head predicts in training, and with what it is compared."""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.heads.parts import formats
from models.heads.parts import target_ends

# Tokens from one root of a block to the next.
STRIDE = 4


class Kind(NamedTuple):
  """A head that can be trained."""
  config: Callable[..., Any]  # `(target, depth) -> config` of its sizes
  # `(config, target, params, target_params, features, tokens, depth) -> (logits
  # [B, L, N, V], positions [L, N])`: of the tokens that it can draft, and the
  # position of the target's distribution that each is compared with, -1 for
  # none. Where there is a `feature_weight`, `[B, L, N, F]` after them: hidden
  # states that stand for the normed ones of the target at these positions.
  predict: Callable[..., Any]
  # `(target) -> layers` whose outputs it reads
  kept: Callable[..., tuple[int, ...]] = formats.last
  # Weight of the distance of hidden states, relative to the distributions
  feature_weight: float = 0.0
  # `(config, count) -> config` of a head that drafts `count` tokens alone; None
  # if it drafts all
  limited: Callable[..., Any] | None = None
  # `(params, target, target_params) -> params`, the parameters that training
  # begins with, of random ones; None for the random ones
  begin: Callable[..., Any] | None = None
  module: Any = None  # File of the head; set by `head_objectives`


def from_output_layer(params, target, target_params):
  """Returns parameters whose output layers (`head_<i>`, `head_<i>_out` or
  `output`, `[V, k F]`) are the target's, as Medusa (FasterDecoding/Medusa) and
  Chimera (kafkayu/Chimera) begin. It matters most in short training."""
  rows = target_ends.output_rows(
      target, target_params, jnp.arange(target.vocab_size, dtype=jnp.int32))

  def begun(path, x):
    if not re.fullmatch(r"head_\d+(_out)?|output", path[-1].key):
      return x
    return jnp.tile(rows, (1, x.shape[1] // rows.shape[1])).astype(x.dtype)

  return jax.tree_util.tree_map_with_path(begun, params)


def roots(length: int, first: int, depth: int):
  """Returns A positions of a text, one in `STRIDE`, and `[depth, A]` after."""
  anchors = tuple(range(first, length, STRIDE))
  return anchors, np.asarray(anchors)[None] + np.arange(depth)[:, None]


def with_chains(length: int, places, count: int):
  """Returns how a text of T tokens and chains of C after A of them attend. A
  chain sees the text up to its anchor, and itself. Returns `[T + A C]` int32
  positions, and the mask `[T + A C, T + A C]`."""
  places, order = np.asarray(places), np.arange(count)
  positions = np.concatenate(
      [np.arange(length), (places[:, None] + 1 + order).ravel()])
  mask = np.zeros((len(positions),) * 2, bool)
  mask[:length, :length] = np.tri(length, dtype=bool)
  mask[length:, :length] = np.repeat(
      np.arange(length) <= places[:, None], count, axis=0)
  mask[length:, length:] = np.kron(np.eye(len(places), dtype=bool),
                                   np.tri(count, dtype=bool))
  return jnp.asarray(positions, jnp.int32), jnp.asarray(mask)


def of_pairs(unrolled):
  """Returns `predict` of a head that reads pairs of features and tokens.
  `unrolled(config, target, params, target_params, features, tokens [B, T],
  depth)` returns logits `[B, depth, T, V]` of the token after each, maybe with
  hidden states `[B, depth, T, F]` for the target's normed ones; pair t
  of level i counts for t >= i."""
  @functools.wraps(unrolled)
  def predict(config, target, params, target_params, features, tokens, depth):
    outputs = unrolled(config, target, params, target_params, features,
                       tokens[:, 1:], depth)
    logits, *made = outputs if isinstance(outputs, tuple) else (outputs,)
    order, rounds = np.arange(logits.shape[2])[None], np.arange(depth)[:, None]
    # Each pair is the last one of a path.
    return logits, np.where(order >= rounds, order + 1, -1), *made

  return predict
