"""Products of layers with weights and caches, fast on a CPU as well."""

import functools
import math
import os

import jax
import jax.numpy as jnp

from decoding_jax.kernels.cpu import bindings
from models.transformer import quantization

# Numbers of columns for which there are fast products, then multiples of 16.
_SIZES, _IN_16_BITS = (1, 4, 8, 16), (1, 2, 4, 8, 16)
# Columns of a product in 16 bits that has another form on a CPU.
_FEW = range(2, 9)
# Columns of a product on a TPU, at least: one is left to the vector unit, which
# takes weights at a half or a third of the rate of the matrix unit.
_TILE = 8
# Weights of a product that is worth the while of several cores.
LARGE = 2**18


def columns(x):
  """Features first, tokens of all rows after one another.

  Args:
    x: `[B, T, F]`.

  Returns:
    `[F, B * T]`.
  """
  form = {"cpu": _in_rows} if bindings.reads(x) else {}
  return jax.lax.platform_dependent(x, default=_in_columns, **form)


def round_up(width, dtype) -> int:
  """The number of columns that a product is computed over.

  On a CPU the product with 7, 13 or 31 columns takes a third longer than that
  with 8, 16 or 32; elsewhere a few columns more cost nothing.

  Args:
    width: columns there are.
    dtype: of the factors.

  Returns:
    At least as many.
  """
  sizes = _IN_16_BITS if jnp.dtype(dtype).itemsize < 4 else _SIZES
  return next((n for n in sizes if n >= width),
              -(-width // sizes[-1]) * sizes[-1])


def pad(x, width):
  """Puts columns of zeros after those of `[F, n]`: `[F, width]`."""
  more = width - x.shape[1]
  if not more:
    return x
  form = {"cpu": lambda x: jnp.pad(x.T, ((0, more), (0, 0))).T}
  return jax.lax.platform_dependent(
      x, default=lambda x: jnp.pad(x, ((0, 0), (0, more))),
      **(form if bindings.reads(x) else {}))


def lookup(table, index):
  """Rows of a table.

  Args:
    table: `[V, F]`; or a `quantization.Matrix`.
    index: `[...]` int32.

  Returns:
    `[..., F]`; float32 of a table of 8 bits.
  """
  # On a CPU XLA looks up what has 16 bits in float32. Ahead of a loop it would
  # convert the whole table; the barrier makes it wait for the index.
  table, index = jax.lax.optimization_barrier((table, index))
  if quantization.is_matrix(table):
    table = jax.tree.map(lambda x: x[index], table)
    return quantization.dequantize(table, jnp.float32)
  return table[index]


def matmul(kernel, x):
  """A product in float32, computed over a round number of columns.

  On a CPU one column in 32 bits, and few in 16, have other, faster forms; so
  has one on a TPU.

  Args:
    kernel: `[out, in]`; or a `quantization.Matrix`.
    x: `[in, n]`, of the same type unless the kernel has fewer bits.

  Returns:
    `[out, n]` float32.
  """
  return matmuls((kernel,), x)[0]


def matmuls(kernels, x):
  """Products with the same columns, on a CPU in one go.

  Args:
    kernels: as of `matmul`.
    x: see there.

  Returns:
    A tuple of `[out, n]` float32.
  """
  kernels = tuple(kernels)
  if not bindings.multiplies(_values(kernels)):
    return _each(kernels, x)
  return jax.lax.platform_dependent(kernels, x, default=_each, cpu=_together)


def columns_first(kernel, x, count):
  """`matmul(kernel, x[:, :count]).T`, as an array of its own.

  Args:
    kernel: see `matmul`.
    x: `[in, n]`.
    count: of the columns; more than those may be multiplied.

  Returns:
    `[count, out]` float32.
  """
  compiled = lambda kernel, x: _transposed(kernel, x)[:count]
  if not bindings.multiplies(_values([kernel])):
    return compiled(kernel, x)
  return jax.lax.platform_dependent(
      kernel, x, default=compiled,
      cpu=lambda kernel, x: _together((kernel,), x.T[:count].T)[0].T)


def by_inputs(kernel, x, parts):
  """Products of a part of the inputs each, the sum of which is `matmul`.

  Args:
    kernel: `[out, in]`; or a `quantization.Matrix`.
    x: `[in, n]`.
    parts: how many; divides the inputs.

  Returns:
    `[parts, out, n]` float32.
  """
  split = lambda values: values.reshape(len(values), parts, -1)
  if quantization.is_matrix(kernel):
    kernel = kernel.replace(values=split(kernel.values))
    axes = quantization.Matrix(1, None)
  else:
    kernel, axes = split(kernel), 1
  return jax.vmap(matmul, (axes, 0))(
      kernel, x.reshape(parts, -1, x.shape[1]))


def cores() -> int:
  """Those that this process may use: in a container not all of a machine."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def soft_cap(x, cap):
  """Bends numbers into the range of -cap to cap; 0 leaves them as they are."""
  return cap * jnp.tanh(x / cap) if cap else x


def attention(q, parts, cap=0.0):
  """One softmax over several stretches of keys.

  Args:
    q: `[H, G, C, B, T]`, scaled.
    parts: one or two, of keys `[B, H, C, s]`, values `[B, H, s, C]` and a mask
      that broadcasts to `[B, H, G, T, s]`.
    cap: of `soft_cap`, for the scores.

  Returns:
    `[H, G, C, B, T]`.
  """
  attend = functools.partial(_attend, cap)
  forms = {}
  if q.shape[1] * q.shape[4] == 1:
    forms["tpu"] = functools.partial(_attend_twice, cap)
    if q.dtype.itemsize < 4:
      forms["cpu"] = forms["tpu"]
  if bindings.reads(parts[0][0]):
    forms["cpu"] = functools.partial(_attend_natively, cap)
  if not forms:
    return attend(q, parts)
  return jax.lax.platform_dependent(q, parts, default=attend, **forms)


def _in_rows(x):
  """A mere transposition: what follows has its layout, as our own code has."""
  return x.reshape(-1, x.shape[2]).T


def _in_columns(x):
  # The reshape comes last: what follows a mere transposition has its layout,
  # for which XLA has no products in 16 bits on a CPU. It would use float32, and
  # a copy of all weights.
  return x.transpose(2, 0, 1).reshape(x.shape[2], -1)


def _values(kernels):
  return tuple(kernel.values if quantization.is_matrix(kernel) else kernel
               for kernel in kernels)


def _together(kernels, x):
  """`matmuls` by native CPU kernels."""
  scales = tuple(x.scales for x in kernels if quantization.is_matrix(x))
  return _natively(_values(kernels), scales, x)


@jax.custom_jvp
def _natively(kernels, scales, x):
  return bindings.matmuls(kernels, x, scales)


@_natively.defjvp
def _native_slopes(primals, tangents):
  def products(kernels, scales, x):
    ys = [_product(kernel.astype(x.dtype), x) for kernel in kernels]
    return tuple(y * scale for y, scale in zip(ys, scales)) or tuple(ys)

  return _natively(*primals), jax.jvp(products, primals, tangents)[1]


def _each(kernels, x):
  """`matmuls` by the compiler, one after the other."""
  return tuple(_compiled(kernel, x) for kernel in kernels)


def _compiled(kernel, x):
  if quantization.is_matrix(kernel):
    return _of_fewer_bits(kernel.values, x) * kernel.scales
  if kernel.dtype.itemsize < x.dtype.itemsize:
    return _of_fewer_bits(kernel, x)
  width = x.shape[1]
  size = round_up(width, kernel.dtype)
  product = functools.partial(_padded, _product, size)
  forms = {}
  if kernel.dtype.itemsize < 4:
    if size <= _FEW[-1]:
      forms["cpu"] = functools.partial(_padded, _tokens_first,
                                       max(size, _FEW[0]))
  elif width == 1 and kernel.size >= LARGE:
    forms["cpu"] = _in_parts
  if width == 1:
    forms["tpu"] = functools.partial(_padded, _product, _TILE)
  if not forms:
    return product(kernel, x)
  return jax.lax.platform_dependent(kernel, x, default=product, **forms)


def _of_fewer_bits(values, x):
  """`values [out, in] @ x [in, n]` in float32.

  Whole numbers of 8 bits have all their digits in the type of `x`, and so have
  those of bfloat16 in float32.
  """
  forms = {"cpu": _in_blocks}
  if x.shape[1] == 1:
    forms["tpu"] = functools.partial(_padded, _mixed, _TILE)
  return jax.lax.platform_dependent(values, x, default=_mixed, **forms)


def _transposed(kernel, x):
  # Without the barrier the transposition changes the layout of the whole
  # program on a CPU, which then runs several times slower.
  return jax.lax.optimization_barrier(_compiled(kernel, x)).T


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend_natively(cap, q, parts):
  return bindings.attention(q, parts, cap)


@_attend_natively.defjvp
def _attend_natively_slopes(cap, primals, tangents):
  return jax.jvp(functools.partial(_attend, cap), primals, tangents)


def _mixed(values, x):
  """A compiler that has products converts the values where it reads them."""
  # It should not do so ahead of a loop: the barrier makes it wait for `x`.
  values, x = jax.lax.optimization_barrier((values, x))
  return jax.lax.dot_general(
      values, x, (((1,), (0,)), ((), ())), precision=_precision(x.dtype),
      preferred_element_type=jnp.float32)


def _in_blocks(values, x):
  """A product for a CPU, which would write all values as float32 first.

  Of some rows they stay near the core. float32 is what a CPU multiplies best,
  and no type of `x` has more digits.
  """
  width = x.shape[1]
  x = pad(x.astype(jnp.float32), round_up(width, jnp.float32))
  rows = min(max(LARGE // values.shape[1], 1), len(values))
  if math.prod(bindings.split_by_compiler().values()) > 1:
    rows = len(values)  # Each device has its own rows.

  def block(i, y):
    start = jnp.minimum(i * rows, len(values) - rows)
    part = jax.lax.dynamic_slice_in_dim(values, start, rows)
    return jax.lax.dynamic_update_slice_in_dim(
        y, _product(part.astype(jnp.float32), x), start, axis=0)

  y = jnp.zeros((len(values), x.shape[1]), jnp.float32)
  return jax.lax.fori_loop(0, -(-len(values) // rows), block, y)[:, :width]


def _padded(product, size, kernel, x):
  return product(kernel, pad(x, size))[:, :x.shape[1]]


def _in_parts(kernel, x):
  """A product of one column, of which each core computes some rows.

  XLA leaves a product of one column to one core, but not several of them.
  """
  share = max(1, cores() // jax.local_device_count())
  parts = math.gcd(len(kernel), 2**(share.bit_length() - 1))
  kernels = kernel.reshape(parts, -1, kernel.shape[1])
  y = _product(kernels, jnp.broadcast_to(x, (parts, *x.shape)))
  return y.reshape(len(kernel), 1)


def _tokens_first(kernel, x):
  """`(x.T @ kernel.T).T`, which in 16 bits takes two thirds of the time.

  With one column XLA would keep a copy of the weights in float32, but not with
  two.
  """
  y = jax.lax.dot_general(_transpose(x), kernel, (((1,), (1,)), ((), ())),
                          preferred_element_type=jnp.float32)
  return _transpose(y)


def _transpose(x):
  """`x.T` as an array of its own: a mere view gives the weights its layout."""
  parts = x.reshape(math.gcd(len(x), 2), -1, x.shape[1])
  return parts.transpose(2, 0, 1).reshape(x.shape[1], len(x))


def _product(a, b):
  return jnp.matmul(a, b, preferred_element_type=jnp.float32,
                    precision=_precision(a.dtype))


def _precision(dtype):
  """All digits, unless the process asks for others.

  By default TPUs round what is float32 to bfloat16, and GPUs to TF32: texts
  would then differ from those of a forward of other shapes as much as in 16
  bits. `jax_default_matmul_precision` says otherwise. No CPU rounds.
  """
  if dtype.itemsize < 4 or jax.config.jax_default_matmul_precision:
    return None
  return jax.lax.Precision.HIGHEST


def _attend_twice(cap, q, parts):
  """One query is what a TPU's matrix unit is not used for.

  Nor has a CPU a product for it in 16 bits: XLA would copy keys and values to
  float32.
  """
  return _attend(cap, jnp.pad(q, [(0, 0)] * 4 + [(0, 1)]), parts)[..., :1]


def _attend(cap, q, parts):
  """What `attention` computes."""
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32,
                              precision=_precision(q.dtype))
  score = lambda q, keys: soft_cap(product("hgcbt,bhcs->bhgts", q, keys), cap)
  queries = [q, *(_again(q) for _ in parts[1:])]
  scores = jnp.concatenate(
      [jnp.where(mask, score(q, keys), -jnp.inf)
       for q, (keys, _, mask) in zip(queries, parts)], axis=-1)
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  total = weights.sum(axis=-1)
  weights = jnp.split(weights, [parts[0][0].shape[-1]], axis=-1)
  # With the channels in front, values would be transposed, which on a CPU costs
  # as much as a fifth of a token.
  y = sum(product("bhgts,bhsc->bhgtc", w.astype(values.dtype), values)
          for w, (_, values, _) in zip(weights, parts))
  return (y / total[..., None]).astype(q.dtype).transpose(1, 2, 4, 0, 3)


def _again(q):
  """The same queries, which a GPU's compiler takes for others.

  Of two products that share a factor it would make one: it would copy the keys
  of a cache, to have those of the block after them.
  """
  return jax.lax.platform_dependent(
      q, default=_same, cuda=jax.lax.optimization_barrier,
      rocm=jax.lax.optimization_barrier)


def _same(q):
  return q
