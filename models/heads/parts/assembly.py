"""Puts heads together from functions of their architecture and target."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.types import Head
from models.heads.parts import target_ends


class Spec(NamedTuple):
  """What the functions of a head are of."""
  config: Any  # Of the head
  target: Any  # The architecture of the target
  # What sets a head apart from its kin, such as a `cells.Cell`
  part: Any = None


def head(spec: Spec, functions, init, forwards=lambda depth: 1, *,
         num_features: int = 1, depth: int = 0, max_length: int = 0) -> Head:
  """Returns a head on a target that keeps outputs of its width. `functions` are
  `init`, `read`, `start` and `logits` of a `Head`, with `spec` before their
  arguments; `init` is `(key, config, target) -> params`. The rest are `Head`
  fields."""
  config, target, _ = spec
  target_ends.check(target)
  return Head(
      *(functools.partial(function, spec) for function in functions),
      target.vocab_size, (target.dim,) * num_features, forwards, depth=depth,
      max_length=max_length, abstract_params=lambda: jax.eval_shape(
          lambda key: init(key, config, target), jax.random.key(0)))


def above(drafted, tree, nodes):
  """Returns `drafted [B, I, ...]` of the parents of a level's nodes."""
  parents = nodes.of(tree.parents, 1)
  return buffers.take_along(drafted, parents[:, :, None], axis=1)


def put(drafted, of_level, nodes):
  """Returns `drafted [B, I, ...]` with `of_level` for a level's nodes."""
  return jax.lax.dynamic_update_slice_in_dim(drafted, of_level, nodes.start, 1)


def without_state(spec, params, target_params, state, draft, tree, level,
                  nodes):
  """Is `logits` of a `Head` whose draft is `[B, L, N]`, those of each level."""
  del target_params, state, tree
  own = jax.lax.dynamic_index_in_dim(draft, level, 1)
  own = target_ends.spread(spec.target, own, params.get("tokens"))
  return jnp.broadcast_to(own, (len(own), nodes.width, own.shape[-1])), draft


def by_level(level, count: int, function, *arrays):
  """Returns `function(i, *arrays)` of the level; levels share a program."""
  return jax.lax.switch(level, [
      functools.partial(function, i) for i in range(count)], *arrays)
