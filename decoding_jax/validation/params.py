"""Parameters against those that a model needs, by shapes alone."""

import dataclasses
import functools
import numbers
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.types import LanguageModel

# In what a model needs, stands for any tree.
ANY = ...


@dataclasses.dataclass(frozen=True)
class _Shape:
  """Attributes: `shape`, and `inexact`, whether numbers are floats."""
  shape: tuple[int, ...]
  inexact: bool


def check(name: str, model: LanguageModel, params):
  """Raises ValueError for the first parameter that does not fit a model. Float
  types are left to the model, and shapes where it does not tell them."""
  leaves, structure = jax.tree.flatten(params)
  shapes = tuple(map(_shape, leaves))
  if None in shapes:
    path, leaf = _leaves(params)[shapes.index(None)]
    place = f"{name}/{_keys(path)}" if path else name
    raise ValueError(f"{place} is of type {type(leaf).__name__}: an array is "
                     "needed.")
  problem = _problem(model, structure, shapes)
  if problem:
    raise ValueError(f"{name} do not fit the {name.removesuffix('_params')}: "
                     f"{problem}.")


def _shape(leaf):
  """Returns the `_Shape` of an array or a number; None for anything else."""
  if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
    return _Shape(leaf.shape, _is_inexact(leaf.dtype))
  return _Shape((), True) if isinstance(leaf, numbers.Number) else None


@functools.lru_cache(maxsize=None)
def _is_inexact(dtype):
  return bool(jnp.issubdtype(dtype, jnp.inexact))


# Most calls of `generate` have parameters of the same shapes as the last one.
@functools.lru_cache(maxsize=256)
def _problem(model, structure, shapes) -> str:
  """Returns what does not fit; "" if all of it does."""
  if model.abstract_params is None:
    return ""
  needed = model.abstract_params()
  given = jax.tree.unflatten(structure, shapes)
  if type(given) is not type(needed) and not all(
      isinstance(x, Mapping) for x in (given, needed)):
    return (f"a {type(given).__name__} is given, the model needs a "
            f"{type(needed).__name__}")
  return _compared(_leaves(needed), dict(_leaves(given)))


def _compared(needed, given):
  for path, leaf in needed:
    if leaf is ANY:
      given = {other: x for other, x in given.items()
               if other[:len(path)] != path}
      continue
    leaf_form = given.pop(path, None)
    if leaf_form is None:
      return (f"{_keys(path)} is missing, the model needs an array of shape "
              f"{leaf.shape}")
    if leaf_form.shape != leaf.shape:
      return (f"{_keys(path)} has shape {leaf_form.shape}, the model needs "
              f"{leaf.shape}")
    inexact = _is_inexact(leaf.dtype)
    if leaf_form.inexact != inexact:
      kinds = ("floats", "integers") if inexact else ("integers", "floats")
      return f"{_keys(path)} has {kinds[1]}, the model needs {kinds[0]}"
  if given:
    return f"{_keys(next(iter(given)))} is not a parameter of the model"
  return ""


def _leaves(tree):
  return jax.tree_util.tree_flatten_with_path(
      tree, is_leaf=lambda x: x is ANY)[0]


def _keys(path):
  return jax.tree_util.keystr(path, simple=True, separator="/")
