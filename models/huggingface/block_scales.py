"""Matrices in 8 bits with a scale for each block, as DeepSeek-V3 is published.

A float8 matrix `x` has a tensor `x_scale_inv` of block scales (arXiv
2412.19437, section 3.3.2). Weights are read as the products; activations are
not rounded.
"""

import numpy as np

from models.folders import json_files

SCALE = "_scale_inv"
FIELD, _METHOD, _SIZES = "quantization_config", "fp8", "weight_block_size"


def is_known(given) -> bool:
  """Returns whether a `quantization_config` is one of such blocks. Raises
  ValueError for float8 without blocks of two sizes."""
  if not isinstance(given, dict) or given.get("quant_method") != _METHOD:
    return False
  sizes = given.get(_SIZES)
  if not (isinstance(sizes, list) and len(sizes) == 2
          and all(type(x) is int and x > 0 for x in sizes)):
    raise ValueError(f"{FIELD}: {_SIZES}={json_files.shown(sizes)} of {_METHOD}"
                     " is not supported; two positive integers are.")
  return True


def dequantized(path, tensors):
  """Returns the dict of `Tensor`, matrices multiplied by their scales. `path`
  is from the `config.json`, which has the sizes of blocks."""
  scales = {name for name in tensors if name.endswith(SCALE)
            and name.removesuffix(SCALE) in tensors}
  if not scales:
    return tensors
  given = json_files.read(path).get(FIELD) if path.is_file() else None
  if not is_known(given):
    raise ValueError(f"'{path}': tensors {SCALE[1:]} need {FIELD} with "
                     f"quant_method={_METHOD!r}.")
  rest = {name: x for name, x in tensors.items() if name not in scales}
  return rest | {name.removesuffix(SCALE): _scaled(
      tensors[name.removesuffix(SCALE)], tensors[name], given[_SIZES])
                 for name in scales}


def _scaled(matrix, scales, sizes):
  """Returns a `Tensor` of a matrix times the scales of its blocks."""
  needed = tuple(-(-count // size) for count, size in zip(matrix.shape, sizes))
  if scales.shape != needed or len(matrix.shape) != 2:
    return matrix._replace(
        read=None, refusal=f"of shape {matrix.shape} has scales of shape "
        f"{scales.shape}: {needed} for blocks of {sizes} is needed.")
  if matrix.refusal or scales.refusal:
    return matrix._replace(refusal=matrix.refusal or scales.refusal)

  def read():
    x, by = (part.read().astype(np.float32) for part in (matrix, scales))
    for i, row in enumerate(by):
      x[i * sizes[0]:(i + 1) * sizes[0]] *= np.repeat(row, sizes[1])[
          None, :x.shape[1]]
    return x

  return matrix._replace(read=read)
