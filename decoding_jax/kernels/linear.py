"""Products of activations with weights of 32, 16, 8 or 4 bits."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings

# Fewer rows become so many on a TPU, a tile of 16 bits. It would leave a single
# one to its vector unit, which reads weights at a half or a third of the rate
# of the matrix unit; eight take a fifth more cycles without.
_TPU_ROWS = 16
# Rows that a single one of 16 bits becomes on a CPU, where XLA would keep a
# float32 copy of the weights.
_CPU_ROWS = 2


def matmul(x, weights, scale=None):
  """Returns `x @ weights.T` `[..., out]` in float32, of `weights [out, in]`.
  Weights are of the type of `x`, bfloat16 or int8. `scale [out, 1]` float32
  multiplies outputs."""
  return matmuls(x, (weights,), None if scale is None else (scale,))[0]


def matmuls(x, weights, scales=None, sliced=False, dtype=jnp.float32,
            least=None):
  """Returns a tuple of products of the same activations, rounded to `dtype`;
  see `matmul`. `sliced` says that weights are slices of larger arrays, by the
  number of an iteration: a TPU converts them where it reads them. Weights in
  groups have scales, and may have `least`, `[out, groups]` each: they are
  multiplied as `dequantized` in the type of `x`."""
  tokens = x.reshape(-1, x.shape[-1])
  found = _matmuls(tokens, tuple(weights), tuple(scales or ()),
                   tuple(least or ()), sliced=sliced, dtype=jnp.dtype(dtype))
  return tuple(y.reshape(*x.shape[:-1], y.shape[-1]) for y in found)


def dequantized(values, scales, least, dtype):
  """Returns `values * scales + least` `[..., out, in]`, computed in float32.

  Inputs are in groups of one size, with scales `[..., out, groups]` and the
  same of `least`, or None. Values are int8; or uint8 `[..., out, in / 2]`, 16
  bytes for 32 inputs: a byte has one of the first 16 in its lower half, and the
  one 16 later in its upper half, as blocks of GGUF's Q4_0 have them.
  """
  if values.dtype == jnp.uint8:
    bytes_ = values.reshape(*values.shape[:-1], -1, 16)
    values = jnp.concatenate([bytes_ & 15, bytes_ >> 4], -1)
  grouped = values.reshape(*scales.shape, -1).astype(jnp.float32)
  grouped *= scales[..., None].astype(jnp.float32)
  if least is not None:
    grouped += least[..., None].astype(jnp.float32)
  return grouped.reshape(*scales.shape[:-1], -1).astype(dtype)


def _reference(x, weights, scales, least, *, sliced, dtype):
  if least or any(scale.shape[1] > 1 for scale in scales):  # In groups
    # The barrier keeps XLA from making all weights ahead of a loop.
    x, weights, scales, least = jax.lax.optimization_barrier(
        (x, weights, scales, least))
    weights = [dequantized(*group, x.dtype) for group in zip(
        weights, scales, least or [None] * len(weights))]
    scales = ()
  ys = [_product(x, w, sliced) for w in weights]
  if scales:
    ys = [y * scale[:, 0][None] for y, scale in zip(ys, scales)]
  return tuple(y.astype(dtype) for y in ys)


def _product(x, weights, sliced):
  forms, dot = {}, _dot_sliced if sliced else _dot
  if len(x) < _TPU_ROWS:
    forms["tpu"] = functools.partial(_padded, dot, _TPU_ROWS)
  if len(x) == 1:
    if x.dtype.itemsize < 4:
      forms["cpu"] = functools.partial(_padded, dot, _CPU_ROWS)
  elif x.dtype == weights.dtype == jnp.float32:
    # The other way: faster on a CPU with fewer columns than rows.
    forms["cpu"] = lambda x, weights: jax.lax.dot_general(
        weights, x, (((1,), (1,)), ((), ()))).T
  return dispatch.by_platform(x, weights, default=dot, **forms)


def _padded(dot, rows, x, weights):
  return dot(jnp.pad(x, ((0, rows - len(x)), (0, 0))), weights)[:len(x)]


def _dot(x, weights):
  if weights.dtype != x.dtype:
    # The conversion belongs to the product. The barrier keeps XLA from making
    # it ahead of a loop, where it would be a copy of all weights.
    weights, x = jax.lax.optimization_barrier((weights, x))
  return _dot_sliced(x, weights)


def _dot_sliced(x, weights):
  """Multiplies without a barrier, before which a slice would be a copy."""
  return jax.lax.dot_general(
      x, weights, (((1,), (1,)), ((), ())), precision=precision(x.dtype),
      preferred_element_type=jnp.float32)


def precision(dtype):
  """Returns the precision of products: all digits, unless others are asked for.
  By default TPUs round float32 to bfloat16, and GPUs to TF32: a forward of
  other shapes would then give other texts. CPUs never round."""
  if dtype.itemsize < 4 or jax.config.jax_default_matmul_precision:
    return None
  return jax.lax.Precision.HIGHEST


_matmuls = dispatch.on_cpu(
    _reference,
    lambda *arrays, sliced, dtype: bindings.matmuls(*arrays, dtype=dtype),
    fits=lambda *arrays, sliced, dtype: bindings.supports_matmul(
        *arrays, dtype=dtype))
