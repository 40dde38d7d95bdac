"""Names, mesh axes and numbers of parameters."""

import contextlib
import contextvars
import math

import jax

from decoding_jax import types
from models.transformer import quantization


# What an axis of a parameter is made of, if it may be split over devices.
HEADS, KV_HEADS, HIDDEN, VOCAB = "heads", "kv heads", "hidden", "vocab"
EXPERTS = "experts"
DENSE = "hidden, of layers without experts in a model with some"
SHARED = "hidden, of what all tokens use besides their experts"
LINEAR = "heads of layers with a state"
# The axes of a matrix that every device has all of.
WHOLE = (None, None)

_declared = contextvars.ContextVar("declared", default=None)


def declare(module, name: str, init, shape, dtype, axes):
  """Makes a parameter of a Flax module, with what its axes are made of. `init`
  is `(key, shape, dtype) -> array` or a `quantization.Matrix`. `axes` are of
  the last axes, None for one that is not split; `WHOLE` for a replicated
  matrix."""
  declared = _declared.get()
  if declared is not None:
    declared["/".join((*module.path, name))] = axes
  if module.has_variable("params", name):
    given = module.get_variable("params", name)
    if quantization.shape(given) == shape:
      return given  # In whatever format.
  return module.param(name, init, shape, dtype)


@contextlib.contextmanager
def declarations():
  """Yields a dict that gets the axes of all parameters made meanwhile."""
  declared = {}
  token = _declared.set(declared)
  try:
    yield declared
  finally:
    _declared.reset(token)


def param_name(path) -> str:
  """Returns a parameter's name, as "layers/layer_0/attention/key/kernel"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def num_params(params: types.Params) -> int:
  """Returns the number of scalars in parameters, scales left out."""
  return sum(math.prod(quantization.shape(x)) for x in jax.tree.leaves(
      params, is_leaf=quantization.is_matrix))
