"""Names and numbers of parameters."""

import jax

from decoding_jax import types
from models.transformer import quantization


def param_name(path) -> str:
  """Returns a parameter's name, as "layers/layer_0/attention/key/kernel".

  Args:
    path: of a leaf, as the functions of `jax.tree_util` give it.

  Returns:
    Its keys, joined by slashes.
  """
  return jax.tree_util.keystr(path, simple=True, separator="/")


def num_params(params: types.Params) -> int:
  """Returns the number of scalars in parameters, scales of int8 left out."""
  values = jax.tree.map(lambda x: x.values if quantization.is_matrix(x) else x,
                        params, is_leaf=quantization.is_matrix)
  return sum(x.size for x in jax.tree.leaves(values))
