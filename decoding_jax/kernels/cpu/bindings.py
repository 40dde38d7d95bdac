"""Native CPU kernels, in C++ of `decoding_jax/kernels/cpu/src`.

- Products: XLA packs weights into other arrays first, in each of them, which
  for a few tokens takes longer than the product.
- Attention, without scores in memory, over the slots that are seen.
- Norms, for each of which XLA has several operations.
- Commits: to write a few slots of 16 bits, XLA converts the whole cache.
- Distributions and draws, which XLA computes in many passes over the
  vocabulary; and random words.

They are called through `jax.ffi`, inside of XLA's programs and on its threads.
"""

import logging
import math
import os

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import mesh_axes

_LOG = logging.getLogger(__name__)
# "xla" turns native kernels off; so does 0 in the older one, for one release.
SWITCH, _OLD_SWITCH = "DECODING_JAX_KERNELS", "DECODING_JAX_NATIVE"
_HANDLERS = ("products", "norm", "attention", "commit", "normalizer", "draws",
             "hashes", "room", "put")
# The name of the library, or None, by whether it could be compiled then.
_found = {}
_FLOATS = ("float32", "bfloat16")
_DTYPES = (*_FLOATS, "int8")


def supports_matmul(x, weights, scales=()) -> bool:
  """Returns whether `matmuls` can be called for these arguments."""
  del x  # Of any type.
  kinds = {str(w.dtype) for w in weights}
  return (len(kinds) == 1 and kinds <= set(_DTYPES)
          and len(scales) in (0, len(weights))
          and all(w.size for w in weights) and _can_be_called())


def matmuls(x, weights, scales=()):
  """Multiplies in float32; a token's bits do not depend on other tokens.

  Args:
    x: `[n, in]`.
    weights: `[out, in]` each, all float32, bfloat16 or int8.
    scales: `[out, 1]` float32 of each, which outputs are multiplied by; or of
      none.

  Returns:
    A tuple of `[n, out]` float32.
  """
  x = x if str(x.dtype) in _FLOATS else x.astype(jnp.float32)
  shapes = [jax.ShapeDtypeStruct((len(x), len(w)), jnp.float32)
            for w in weights]
  return tuple(_call("products", shapes, x, *weights, *scales))


def supports_floats(x) -> bool:
  """Returns whether `rms_norm` and `attention` know numbers of this type."""
  return str(x.dtype) in _FLOATS and bool(x.size) and _can_be_called()


def rms_norm(x, scale, *, epsilon, plus_one):
  """See `kernels.rms_norm`.

  Args:
    x: `[..., F]`, float32 or bfloat16.
    scale: `[F]`, of the same type.
    epsilon: static.
    plus_one: static.

  Returns:
    Of the shape and type of `x`.
  """
  y, = _call("norm", [jax.ShapeDtypeStruct(x.shape, x.dtype)], x, scale,
             epsilon=np.float32(epsilon), plus_one=plus_one)
  return y


def attention(q, parts, *, cap):
  """See `kernels.attention`; slots that no query sees are not read.

  Args:
    q: `[B, T, H, G, C]`, scaled.
    parts: keys `[B, H, C, S]`, values `[B, H, S, C]`, masks `[B, T or 1, S]`;
      spans, where there are any, say nothing that masks do not.
    cap: of the scores; 0: none.

  Returns:
    A pair as those of `dot_product_attention.merge`: `[B, T, H, G, C]` and
    `[B, T, H, G]`, both float32.
  """
  queries = q.astype(jnp.float32).transpose(0, 2, 3, 1, 4)
  arrays = []
  for keys, values, mask, *_ in parts:
    arrays += [keys, values,
               jnp.broadcast_to(mask, (len(q), *mask.shape[1:]))]
  y, log_sums = _call(
      "attention", [jax.ShapeDtypeStruct(shape, jnp.float32)
                    for shape in (queries.shape, queries.shape[:-1])],
      queries, *arrays, cap=np.float32(cap))
  return y.transpose(0, 3, 1, 2, 4), log_sums.transpose(0, 3, 1, 2)


def supports_writes(arrays) -> bool:
  """Returns whether `commit`, `empty_like`, `write_slots` take such arrays."""
  return bool(arrays) and all(x.size for x in arrays) and _can_be_called()


def commit(keys, values, fresh_keys, fresh_values, slots, lengths):
  """Copies slots of a block into a cache, in place; see `kernels.commit`.

  Args:
    keys: of the cache, a tuple of `[..., B, H, C, S]` of any type.
    values: of the cache, a tuple of `[..., B, H, S, C]`.
    fresh_keys: of the block, a tuple of `[..., B, H, C, N]`.
    fresh_values: of the block, a tuple of `[..., B, H, N, C]`.
    slots: `[B, K]` int32, of the block.
    lengths: `[B]` int32, where to; a start beyond S - K is moved back to it.

  Returns:
    keys and values of the cache.
  """
  arrays = (*keys, *values)
  out = _call("commit",
              [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays], slots,
              lengths, *arrays, *fresh_keys, *fresh_values,
              aliases={2 + i: i for i in range(len(arrays))},
              keys=np.int64(len(keys)))
  return tuple(out[:len(keys)]), tuple(out[len(keys):])


def supports_vocab(vocab_size) -> bool:
  """Returns whether `log_normalizer` and `gumbel_top_k` can be called."""
  return vocab_size > 0 and _can_be_called()


def log_normalizer(x, divisor):
  """Returns the largest of each row, and log sum exp((x - largest) / divisor).

  Args:
    x: `[..., V]` float32.
    divisor: `[]` float32.

  Returns:
    Two arrays `[...]` float32.
  """
  shape = jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32)
  return tuple(_call("normalizer", (shape, shape), x, divisor,
                     vmap_method="broadcast_all"))


def gumbel_top_k(key, log_probs, k):
  """See `kernels.gumbel_top_k`.

  Args:
    key: `[2]` uint32, of Threefry.
    log_probs: `[V]` float32.
    k: static.

  Returns:
    `[k]` float32 and `[k]` int32.
  """
  kinds = jnp.float32, jnp.int32
  shapes = [jax.ShapeDtypeStruct((k,), kind) for kind in kinds]
  return tuple(_call("draws", shapes, key, log_probs,
                     vmap_method="broadcast_all"))


def threefry_hashes(key, numbers):
  """See `kernels.threefry_hashes`.

  Args:
    key: `[2]` uint32.
    numbers: `[...]` uint32, second halves of words whose first ones are 0.

  Returns:
    `[..., 2]` uint32, both halves.
  """
  shape = jax.ShapeDtypeStruct((numbers.size, 2), jnp.uint32)
  found, = _call("hashes", [shape], key, numbers.reshape(-1),
                 vmap_method="broadcast_all")
  return found.reshape(*numbers.shape, 2)


def first_threefry_hashes(key, *, count):
  """Returns the hashes of 0, 1, ..., count - 1: `[count, 2]`."""
  found, = _call("hashes", [jax.ShapeDtypeStruct((count, 2), jnp.uint32)], key,
                 vmap_method="broadcast_all")
  return found


def empty_like(after, *, like, is_zero):
  """Returns new arrays.

  Args:
    after: an array; they are made once it is known. What depends on nothing XLA
      would make once ahead of a loop, and copy in each iteration.
    like: their shapes and types.
    is_zero: whether they hold zeros, or whatever the memory held.

  Returns:
    As many arrays.
  """
  return tuple(_call("room", like, after, zeros=is_zero))


def write_slots(targets, sources, start):
  """Copies arrays into others, in place.

  Args:
    targets: a tuple of `[B, M, ...]` of any types.
    sources: a tuple of `[B, W, ...]`, of the same types.
    start: `[]` int32, at which of M they begin.

  Returns:
    The targets.
  """
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in targets]
  return tuple(_call("put", shapes, start, *targets, *sources,
                     aliases={1 + i: i for i in range(len(targets))}))


def prepare() -> bool:
  """Compiles the kernels unless they have been, and registers them with XLA.

  `dj.generate` and `transformer.init` call it. Who traces a program of his own
  before calls it first: within a trace nothing is compiled, and on a machine
  where nothing was before, what is traced then is left to XLA for good.

  Returns:
    Whether there are native kernels now. There are none on other platforms,
    without a C++ compiler, and where `DECODING_JAX_KERNELS=xla`.
  """
  return available()


def available() -> bool:
  """Returns whether native kernels are wanted and there; see `prepare`."""
  return not _is_switched_off() and _library() is not None


def _is_switched_off() -> bool:
  return os.environ.get(SWITCH) == "xla" or os.environ.get(_OLD_SWITCH) == "0"


def is_tracing() -> bool:
  """Tells whether a program is being traced."""
  # Within it even arrays made from constants are tracers.
  return isinstance(jnp.asarray(np.int32(0)), jax.core.Tracer)


def _can_be_called() -> bool:
  """Not where a compiler splits arrays that a kernel would read whole."""
  return available() and math.prod(mesh_axes.split_by_compiler().values()) <= 1


def _call(name, results, *arrays, vmap_method="sequential", aliases=None,
          **attributes):
  call = jax.ffi.ffi_call(_target(name, _library()), results,
                          vmap_method=vmap_method,
                          input_output_aliases=aliases or {})
  return call(*arrays, **attributes)


def _target(name, library):
  # Programs are kept on disk: they must not find the code of other sources.
  return f"decoding_jax_{name}_{library}"


def _library() -> str | None:
  """Returns the name of the library; it is loaded when first asked for."""
  found = next(filter(None, _found.values()), None)
  if found:
    return found
  may_compile = not is_tracing()
  if may_compile not in _found:
    name, is_final = _load(may_compile)
    _found.update(dict.fromkeys((True, False) if is_final else (may_compile,),
                                name))
  return _found[may_compile]


def _load(may_compile) -> tuple[str | None, bool]:
  """Loads the library, and registers it with XLA.

  Returns:
    Its name, or None; and whether that holds for the whole process.
  """
  if jax.default_backend() != "cpu":
    return None, True
  # Not above: it is a program as well.
  from decoding_jax.kernels.cpu import build
  try:
    digest, library = build.load(may_compile)
  except build.Unavailable as error:
    _LOG.log(logging.WARNING if error.is_fault else logging.INFO,
             "All computations are left to XLA: %s", error)
    return None, error.is_final
  for name in _HANDLERS:
    jax.ffi.register_ffi_target(
        _target(name, digest), jax.ffi.pycapsule(getattr(library, name)),
        platform="cpu")
  return digest, True
