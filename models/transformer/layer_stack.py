"""Parameters of all layers as one array each, for layers that are scanned.

At most one parameter of one layer is held twice: stacks are filled uncopied.
"""

import functools
import re
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import quantization

_LAYERS, _STACK = "layers", "layer"
_IN_STACK = tuple(map(jax.tree_util.DictKey, (_LAYERS, _STACK)))


@flax.struct.dataclass
class InStack:
  """The part of a layer in arrays of all layers, which is not sliced yet."""
  stack: Any  # Arrays `[L, ...]`
  layer: types.Array  # `[]` int32


def in_stack(x) -> InStack:
  """Returns arrays of one layer as an `InStack`; an `InStack` unchanged."""
  if isinstance(x, InStack):
    return x
  return InStack(jax.tree.map(lambda y: y[None], x), jnp.int32(0))


def take(part: InStack, number):
  """Returns an index of the first axis that a layer's arrays have, `[...]`."""
  def of(x):
    zeros = (0,) * (x.ndim - 2)
    return jax.lax.dynamic_slice(x, (part.layer, number, *zeros),
                                 (1, 1, *x.shape[2:]))[0, 0]

  return jax.tree.map(of, part.stack)


class _Part(NamedTuple):
  """A parameter of unrolled layers: its path, its shape and its sharding."""
  path: Any
  leaves: tuple[Any, Any]


def is_stacked(params: types.Params) -> bool:
  """Returns whether parameters are of scanned layers."""
  return _STACK in params[_LAYERS]


def of_first_layer(name: str, dense_layers: int = 0) -> str:
  """Returns a parameter's name in the first layer that is like its own."""
  number = layer_number(name)
  first = 0 if number is not None and number < dense_layers else dense_layers
  return re.sub(f"^{_LAYERS}/{_STACK}[_0-9]*/", f"{_LAYERS}/{_layer(first)}/",
                name)


def layer_number(name: str) -> int | None:
  """Returns the number of the unrolled layer that has a parameter, or None."""
  match = re.match(f"^{_LAYERS}/{_STACK}_([0-9]+)/", name)
  return int(match[1]) if match else None


def place_all(params: types.Params, shardings, put) -> types.Params:
  """Places parameters one after the other, a stack layer by layer. `params` are
  shapes, of layers scanned or not; `shardings` is asked for unrolled layers
  too. `put` is `(path, shape, sharding) -> array` of an unrolled parameter (or
  of a `quantization.Matrix` of each)."""
  is_matrix, where = quantization.is_matrix, shardings(params)
  if not is_stacked(params):
    return jax.tree_util.tree_map_with_path(put, params, where,
                                            is_leaf=is_matrix)
  single = _unstacked(params, lambda leaf, _: jax.ShapeDtypeStruct(
      leaf.shape[1:], leaf.dtype))
  parts = dict(jax.tree.leaves(jax.tree_util.tree_map_with_path(
      lambda path, *leaves: _Part(path, leaves), single, shardings(single),
      is_leaf=is_matrix), is_leaf=lambda x: isinstance(x, _Part)))

  first = len(params[_LAYERS]) - 1

  def placed(path, like, where):
    if path[:2] != _IN_STACK:
      return put(path, *parts[path])
    in_layer = lambda i: (path[0], jax.tree_util.DictKey(_layer(first + i)),
                          *path[2:])
    return _fill(like, where, lambda i: put(in_layer(i), *parts[in_layer(i)]))

  return jax.tree_util.tree_map_with_path(placed, params, where,
                                          is_leaf=is_matrix)


def _fill(like, where, piece):
  """Makes a stack `[L, ...]` of `piece(number)`, one after the other."""
  stack = jax.tree.map(lambda x, at: _empty(x.shape, x.dtype, at)(), like,
                       where)
  for number in range(jax.tree.leaves(like)[0].shape[0]):
    stack = jax.tree.map(lambda whole, x, at: _writer(at)(whole, x, number),
                         stack, piece(number), where)
    # Pieces would else add up while the devices fetch them.
    jax.block_until_ready(stack)
  return stack


def stack_layers(params: types.Params) -> types.Params:
  """Turns parameters of unrolled layers into scanned layers'."""
  layers = dict(params[_LAYERS])
  alike = [layers.pop(name) for name in _alike(layers)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
  return {**params, _LAYERS: {**layers, _STACK: stacked}}


def _alike(layers) -> list[str]:
  """Returns the names of those unrolled layers that a scan goes over. First
  ones without experts have other parameters than the last one."""
  names = [_layer(i) for i in range(len(layers))]
  last = jax.tree.structure(layers[names[-1]])
  return [name for name in names if jax.tree.structure(layers[name]) == last]


def unstack_layers(params: types.Params) -> types.Params:
  """Turns parameters of scanned layers into unrolled layers'. Stacks that
  nobody else holds are freed one after the other."""
  return _unstacked(params, lambda leaf, i: leaf[i])


def abstract_layers(params: types.Params, like: list[int],
                    scanned: bool) -> types.Params:
  """Returns the shapes of a decoder of many layers, from a few layers'. Layer
  i is like number `like[i]` of the few, which are not scanned."""
  few = params[_LAYERS]
  last = few[_layer(len(few) - 1)]
  layers = {_layer(i): few[_layer(same)] for i, same in enumerate(like)}
  if scanned:
    alike = _alike(layers)
    layers = {name: x for name, x in layers.items() if name not in alike}
    layers[_STACK] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        (len(alike), *x.shape), x.dtype), last)
  return {**params, _LAYERS: layers}


def _layer(number):
  return f"{_STACK}_{number}"


def _unstacked(params, take):
  params = dict(params)
  ahead = dict(params.pop(_LAYERS))
  stacks, structure = jax.tree.flatten(ahead.pop(_STACK))
  layers = [[] for _ in range(stacks[0].shape[0])]
  stacks.reverse()
  while stacks:
    stack = stacks.pop()
    for i, layer in enumerate(layers):
      layer.append(take(stack, i))
    del stack
  return {**params, _LAYERS: ahead | {
      _layer(i): jax.tree.unflatten(structure, layer)
      for i, layer in enumerate(layers, len(ahead))}}


@functools.lru_cache(maxsize=256)
def _empty(shape, dtype, where):
  return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=where)


@functools.lru_cache(maxsize=64)
def _writer(where):
  """Returns a function that writes a layer where its stack lies."""
  return jax.jit(
      lambda whole, x, number: jax.lax.dynamic_update_index_in_dim(
          whole, x, number, 0), donate_argnums=0, out_shardings=where)
