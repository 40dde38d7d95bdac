"""Native CPU kernels, in C++ of `decoding_jax/kernels/cpu/src`.

They replace what XLA does slowly for few tokens: it repacks weights for each
product, converts a whole 16-bit cache for each commit, and passes over the
vocabulary many times. They run through `jax.ffi`, on XLA's threads.
"""

import logging
import math
import os

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import mesh_axes

_LOG = logging.getLogger(__name__)
# "xla" turns native kernels off.
SWITCH = "DECODING_JAX_KERNELS"
_HANDLERS = ("products", "sum", "swiglu", "norm", "attention", "commit",
             "normalizer", "draws", "hashes", "room", "put")
# The name of the library, or None, by whether it could be compiled then.
_found = {}
_FLOATS = ("float32", "bfloat16")
_DTYPES = (*_FLOATS, "int8", "uint8")
# Inputs of a group are a multiple, and 32 of weights of 4 bits.
_GROUP = 16


def supports_matmul(x, weights, scales=(), least=(), *,
                    dtype=jnp.float32) -> bool:
  kinds = {str(w.dtype) for w in weights}
  groups = {(scale.shape[1], str(scale.dtype)) for scale in (*scales, *least)}
  size = x.shape[1] / min(groups)[0] if groups else 0
  return (len(kinds) == 1 and kinds <= set(_DTYPES)
          and supports_dtype(dtype)
          and len(scales) in (0, len(weights))
          and len(least) in (0, len(scales))
          and (groups <= {(1, "float32")} and not least or len(groups) == 1
               and (size == 2 * _GROUP if kinds == {"uint8"} else
                    size % _GROUP == 0))
          and all(w.size for w in weights) and _can_be_called())


def matmuls(x, weights, scales=(), least=(), *, dtype=jnp.float32):
  """Multiplies in float32; a token's bits do not depend on other tokens."""
  x = x if str(x.dtype) in _FLOATS else x.astype(jnp.float32)
  shapes = [jax.ShapeDtypeStruct((len(x), len(w)), dtype) for w in weights]
  return tuple(_call("products", shapes, x, *weights, *scales, *least))


def supports_dtype(dtype) -> bool:
  return str(jnp.dtype(dtype)) in _FLOATS


def supports_floats(x) -> bool:
  return supports_dtype(x.dtype) and bool(x.size) and _can_be_called()


def supports_pair(x, y) -> bool:
  return (x.shape, x.dtype) == (y.shape, y.dtype) and supports_floats(x)


def of_pair(name, x, y):
  return _call(name, [jax.ShapeDtypeStruct(x.shape, x.dtype)], x, y)[0]


def rms_norm(x, scale, *, epsilon, plus_one):
  y, = _call("norm", [jax.ShapeDtypeStruct(x.shape, x.dtype)], x, scale,
             epsilon=np.float32(epsilon), plus_one=plus_one)
  return y


def attention(q, parts, *, cap, dtype=jnp.float32):
  """Returns a pair as of `dot_product_attention.merge`, the first of `dtype`.
  Slots that no query sees are not read. Spans say nothing that masks do not."""
  queries = q.astype(jnp.float32)
  arrays = []
  for keys, values, mask, *_ in parts:
    arrays += [keys, values,
               jnp.broadcast_to(mask, (len(q), *mask.shape[1:]))]
  return tuple(_call(
      "attention", [jax.ShapeDtypeStruct(queries.shape, dtype),
                    jax.ShapeDtypeStruct(queries.shape[:-1], jnp.float32)],
      queries, *arrays, cap=np.float32(cap)))


def supports_writes(arrays) -> bool:
  return bool(arrays) and all(x.size for x in arrays) and _can_be_called()


def commit(keys, values, fresh_keys, fresh_values, slots, lengths):
  arrays = (*keys, *values)
  out = _call("commit",
              [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays],
              *(x.astype(jnp.int32) for x in (slots, lengths)),  # Under x64.
              *arrays, *fresh_keys, *fresh_values,
              aliases={2 + i: i for i in range(len(arrays))},
              keys=np.int64(len(keys)))
  return tuple(out[:len(keys)]), tuple(out[len(keys):])


def supports_vocab(vocab_size) -> bool:
  return vocab_size > 0 and _can_be_called()


def log_normalizer(x, divisor):
  """Returns largest, and log sum exp((x - largest) / divisor), of each row."""
  shape = jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32)
  return tuple(_call("normalizer", (shape, shape), x, divisor,
                     vmap_method="broadcast_all"))


def gumbel_top_k(key, log_probs, k):
  kinds = jnp.float32, jnp.int32
  shapes = [jax.ShapeDtypeStruct((k,), kind) for kind in kinds]
  return tuple(_call("draws", shapes, key, log_probs,
                     vmap_method="broadcast_all"))


def threefry_hashes(key, numbers):
  shape = jax.ShapeDtypeStruct((numbers.size, 2), jnp.uint32)
  found, = _call("hashes", [shape], key, numbers.reshape(-1),
                 vmap_method="broadcast_all")
  return found.reshape(*numbers.shape, 2)


def first_threefry_hashes(key, *, count):
  found, = _call("hashes", [jax.ShapeDtypeStruct((count, 2), jnp.uint32)], key,
                 vmap_method="broadcast_all")
  return found


def empty_like(after, *, like, is_zero):
  """Returns new arrays, made once `after` is known."""
  return tuple(_call("room", like, after, zeros=is_zero))


def write_slots(targets, sources, start):
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in targets]
  return tuple(_call("put", shapes, start, *targets, *sources,
                     aliases={1 + i: i for i in range(len(targets))}))


def prepare() -> bool:
  """Compiles the kernels unless they have been; returns whether there are any.
  `dj.generate` and `transformer.init` call it; call it before tracing a program
  of your own, since nothing is compiled within a trace. None on other
  platforms, without a C++ compiler, or where `DECODING_JAX_KERNELS=xla`."""
  return available()


def available() -> bool:
  """Returns whether native kernels are wanted and there; see `prepare`."""
  return os.environ.get(SWITCH) != "xla" and _library() is not None


def is_tracing() -> bool:
  """Returns whether a program is being traced."""
  # Within it even arrays made from constants are tracers.
  return isinstance(jnp.asarray(np.int32(0)), jax.core.Tracer)


def _can_be_called() -> bool:
  # Not where a compiler splits arrays that a kernel would read whole.
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
  """Returns the name of the library or None, and whether that is final."""
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
