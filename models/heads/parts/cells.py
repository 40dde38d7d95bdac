"""Heads that draft by a cell: a node's state from its parent's and its token.

Row states, drafts of inner nodes and training are common to all cells.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.types import Head
from models.heads.parts import assembly
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends


class Cell(NamedTuple):
  """The functions of a head; `spec`, an `assembly.Spec`, comes first in each.

  Attributes:
    node: `(spec, params, above [B, W, F], embeddings, is_root) -> (state,
      output)`, `[B, W, F]` each: of a node, after its parent; the state above
      a root is what was read last. The target's output layer takes `output`.
    read: `(spec, params, target_params, features, embeddings) -> [B, T, F]` of
      pairs, which go through `layers`.
    embed: `(spec, params, target_params, tokens [...]) -> [..., F]`.
    layers: `(spec) -> transformer.Config` of layers over the pairs, whose
      parameters are `params["augment"]`; or None.
  """
  node: Callable[..., Any]
  read: Callable[..., Any] = lambda spec, params, target_params, features, _: (
      target_ends.norm(spec.target, target_params, features[0]))
  embed: Callable[..., Any] = lambda spec, params, target_params, tokens: (
      target_ends.embed(spec.target, target_params, tokens))
  layers: Callable[..., Any] = lambda spec: None


def head(cell: Cell, config, target, init, max_length: int = 0) -> Head:
  """Returns a head; `init(key, config, target) -> params`."""
  spec = assembly.Spec(config, target, cell)
  init_state = functools.partial(prefix_layers.init_state, cell.layers(spec),
                                 target)
  return assembly.head(spec, (init_state, _read, _start, _logits), init,
                       max_length=max_length)


def rounds(cell: Cell, config, target, params, target_params, features, tokens,
           depth: int):
  """Returns what a head predicts after the right tokens; see `of_pairs`. The
  outputs that its logits are of stand for the target's hidden states."""
  spec = assembly.Spec(config, target, cell)
  embeddings = cell.embed(spec, params, target_params, tokens)
  hidden = prefix_layers.forward(
      cell.layers(spec), params.get("augment"),
      cell.read(spec, params, target_params, features, embeddings))
  outputs = []
  for level in range(depth):
    if level:
      hidden = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
    hidden, out = cell.node(spec, params, hidden, embeddings, not level)
    outputs.append(out)
  made = jnp.stack(outputs, axis=1)
  return target_ends.logits(target, target_params, made), made


def _read(spec, params, target_params, state, features, tokens, count):
  cell = spec.part
  x = cell.read(spec, params, target_params, features,
                cell.embed(spec, params, target_params, tokens))
  return prefix_layers.read(cell.layers(spec), params.get("augment"), x, state,
                            count)


def _start(spec, params, target_params, state, root, nodes):
  """Returns `[B, I, F]`, states above inner nodes; but for the root empty."""
  del spec, params, target_params, root
  states = jnp.zeros((len(state.hidden), nodes, state.hidden.shape[1]),
                     state.hidden.dtype)
  return states.at[:, 0].set(state.hidden)


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  del state, level
  cell = spec.part
  above = draft[:, :1] if nodes.is_root else assembly.above(draft, tree, nodes)
  embeddings = cell.embed(spec, params, target_params, nodes.of(tree.tokens, 1))
  hidden, out = cell.node(spec, params, above, embeddings, nodes.is_root)
  return target_ends.logits(spec.target, target_params, out), assembly.put(
      draft, hidden, nodes)
