"""Native CPU kernels for a CPU, in `decoding_jax/kernels/cpu/src`.

- Products: XLA packs weights into other arrays first, in each of them, which
  with few columns takes longer than the product.
- Attention, without scores in memory, and of what somebody sees.
- Norms, for each of which XLA has several operations, which are compiled one by
  one.
- Commits: to write a few slots of 16 bits, XLA converts the whole cache.
- Distributions and draws, which XLA computes in many passes over the
  vocabulary; and random words.

It is compiled when it is first needed, some seconds, and kept in the
folder `decoding_jax` of `XDG_CACHE_HOME`, or of `~/.cache`, unless others may
write there. The compiler is the one that `CXX` names, or c++. Where there is
none, or `DECODING_JAX_NATIVE=0` says so, XLA computes all of it.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import math
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import jaxlib
import numpy as np

_LOG = logging.getLogger(__name__)
# What turns it off, when it is 0.
SWITCH = "DECODING_JAX_NATIVE"
_SOURCES = pathlib.Path(__file__).with_name("src")
_HANDLERS = ("products", "norm", "attention", "layers", "commit", "normalizer",
             "draws", "hashes", "room", "put")
# No vector is passed to what others have compiled, which -Wpsabi is about.
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-Wall",
          "-Wextra", "-Wno-psabi")
# Folders of builds begin so; one that is older was killed.
_BUILD, _BUILD_SECONDS = "decoding_jax-build-", 3600
_FLOATS = ("float32", "bfloat16")
_DTYPES = (*_FLOATS, "int8")


class _Refused(Exception):
  """Something that the user has to mend, in one line."""


def multiplies(kernels) -> bool:
  """Whether `matmuls` can be called on a CPU.

  Args:
    kernels: what columns are multiplied with.

  Returns:
    No where a compiler splits arrays over devices: it would not split what
    this code reads.
  """
  kinds = {str(x.dtype) for x in kernels}
  return (len(kinds) == 1 and kinds <= set(_DTYPES)
          and all(x.size for x in kernels) and _can_be_called())


def matmuls(kernels, x, scales=()):
  """Products in float32; no column depends on what others are there.

  The code has the features of a token after one another. So has XLA then what
  is between two calls: transpositions stand in the program alone.

  Args:
    kernels: `[out, in]` each, all float32, bfloat16 or int8.
    x: `[in, n]`.
    scales: `[out, 1]` float32 of each kernel, which products are multiplied by;
      or of none.

  Returns:
    `[out, n]` float32 of each.
  """
  x = (x if str(x.dtype) in _FLOATS else x.astype(jnp.float32)).T
  shapes = [jax.ShapeDtypeStruct((len(x), len(kernel)), jnp.float32)
            for kernel in kernels]
  found = _call("products", shapes, x, *kernels, *scales)
  return tuple(y.T for y in found)


def reads(x) -> bool:
  """Whether `rms_norm` and `attention` can be called for such numbers."""
  return str(x.dtype) in _FLOATS and bool(x.size) and _can_be_called()


def rms_norm(x, scale, epsilon, plus_one):
  """See `norms.rms`.

  Args:
    x: `[..., F, n]`, float32 or bfloat16.
    scale: `[F]`, of the same type.
    epsilon: static.
    plus_one: static.

  Returns:
    Of the shape and type of `x`.
  """
  tokens = jnp.moveaxis(x, -1, 0)
  y, = _call("norm", [jax.ShapeDtypeStruct(tokens.shape, x.dtype)], tokens,
             scale, epsilon=np.float32(epsilon), plus_one=plus_one)
  return jnp.moveaxis(y, 0, -1)


def attention(q, parts, cap=0.0):
  """See `linear_ops.attention`; slots that nobody sees are not read.

  Args:
    q: `[H, G, C, B, T]`, scaled.
    parts: keys `[B, H, C, s]`, values `[B, H, s, C]` and a mask that broadcasts
      to `[B, 1, 1, T, s]`.
    cap: of the scores; 0: none.

  Returns:
    `[H, G, C, B, T]`, of the type of `q`.
  """
  queries = q.astype(jnp.float32).transpose(3, 0, 1, 4, 2)
  arrays = []
  for keys, values, mask in parts:
    mask = mask[:, 0, 0]
    arrays += [keys, values,
               jnp.broadcast_to(mask, (len(queries), *mask.shape[1:]))]
  y, = _call("attention", [jax.ShapeDtypeStruct(queries.shape, jnp.float32)],
             queries, *arrays, cap=np.float32(cap))
  return y.transpose(1, 2, 4, 0, 3).astype(q.dtype)


def layers(x, slot, views, view_of, memories, params, matrices, sizes, kind,
           parts):
  """The layers of a decoder, see `models.transformer.fused_layers`.

  Args:
    x: `[F, n]`, float32 or bfloat16, the first B T columns of which are tokens.
    slot: `[]` int32, of the block, where fresh keys and values go.
    views: what tokens see, one or two: cosines and sines `[2, planes, B, T]`
      float32, masks `[B, 1 or T, S]` and `[B, T, N]`.
    view_of: which of them is that of each layer.
    memories: of each layer keys `[B, H, C, S]` and values `[B, H, S, C]` of the
      cache, and of the block. They and norms and biases are of the type of `x`.
    params: arrays, in the order in which `cpu/src/layers.h` reads them.
    matrices: the type of those among them.
    sizes: numbers that `cpu/src/layers.h` names, and so are the next two.
    kind: what is computed.
    parts: of a layer, which there are.

  Returns:
    `[F, n]`, and of each layer keys and values of the block, where they lay.
  """
  tokens = sizes["rows"] * sizes["length"]
  heads = sizes["heads"] * sizes["channels"]
  scratch = tokens * (3 * sizes["features"] + max(
      2 * heads * (1 + sizes["groups"]), 2 * sizes["hidden"]))
  arrays = [x.T, slot, jnp.zeros(0, matrices), *sum(map(list, views), [])]
  results = [arrays[0], jax.ShapeDtypeStruct((scratch,), jnp.float32)]
  aliases = {}
  for memory in memories:
    arrays += memory
    for at in (-2, -1):
      aliases[len(arrays) + at] = len(results)
      results.append(arrays[at])
  y, _, *fresh = _call(
      "layers", [jax.ShapeDtypeStruct(y.shape, y.dtype) for y in results],
      *arrays, *params, aliases=aliases, views=np.array(view_of, np.int64),
      sizes={name: np.int64(size) for name, size in sizes.items()}, kind=kind,
      parts=parts)
  return y.T, list(zip(fresh[::2], fresh[1::2]))


def has_layers(equation) -> bool:
  """Whether an equation of a `jax.make_jaxpr` is a call of `layers`."""
  return equation.params.get("target_name") == _target("layers", _library())


def writes(arrays) -> bool:
  """Whether `commit`, `room` and `put` can be called on a CPU for them."""
  return bool(arrays) and all(x.size for x in arrays) and _can_be_called()


def commit(keys, values, fresh_keys, fresh_values, slots, lengths):
  """Copies slots of a block into a cache, where it lies.

  Args:
    keys: of the cache, a tuple of `[..., B, H, C, S]` of any type.
    values: the same, `[..., B, H, S, C]`.
    fresh_keys: of the block, `[..., B, H, C, N]`.
    fresh_values: `[..., B, H, N, C]`.
    slots: `[B, K]` int32, of the block.
    lengths: `[B]` int32, where to; beyond S - K it is there.

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


def reduces(vocab_size) -> bool:
  """Whether `normalizer` and `gumbel_top_k` can be called on a CPU."""
  return vocab_size > 0 and _can_be_called()


def normalizer(x, divisor):
  """Of each row the largest number, and log sum exp((x - largest) / divisor).

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
  """See `sampling.gumbel_top_k`.

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


def hashes(key, numbers):
  """What Threefry makes of numbers, see `random.threefry`.

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


def first_hashes(count, key):
  """The same of 0, 1, ..., count - 1: `[count, 2]`."""
  found, = _call("hashes", [jax.ShapeDtypeStruct((count, 2), jnp.uint32)], key,
                 vmap_method="broadcast_all")
  return found


def room(like, after, zeros):
  """Arrays to be written to.

  Args:
    like: their shapes and types.
    after: an array; they are made when it is there. Of what depends on nothing
      XLA would make one ahead of a loop, and a copy in each turn.
    zeros: whether they hold zeros, or whatever was there.

  Returns:
    As many arrays.
  """
  return tuple(_call("room", like, after, zeros=zeros))


def put(targets, sources, start):
  """Copies arrays into others, where they lie.

  Args:
    targets: a tuple of `[B, M, ...]` of any types.
    sources: the same, `[B, W, ...]`.
    start: `[]` int32, at which of M they begin.

  Returns:
    The targets.
  """
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in targets]
  return tuple(_call("put", shapes, start, *targets, *sources,
                     aliases={1 + i: i for i in range(len(targets))}))


def split_by_compiler() -> dict[str, int]:
  """Axes, and their sizes, of a mesh that are left to the compiler.

  Returns:
    Those inside of a `jax.shard_map`; elsewhere none.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if AxisType.Manual not in mesh.axis_types:
    return {}
  return {name: size for name, size, kind in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
          if kind == AxisType.Auto}


def _can_be_called() -> bool:
  """Not where a compiler splits what the code would read whole."""
  return is_there() and math.prod(split_by_compiler().values()) <= 1


def is_there() -> bool:
  """Whether the code could be compiled, and is wanted, on this CPU."""
  return _library() is not None


def _call(name, results, *arrays, vmap_method="sequential", aliases=None,
          **attributes):
  call = jax.ffi.ffi_call(_target(name, _library()), results,
                          vmap_method=vmap_method,
                          input_output_aliases=aliases or {})
  return call(*arrays, **attributes)


def _target(name, library):
  # Programs are kept on disk: they must not find the code of other sources.
  return f"decoding_jax_{name}_{library}"


@functools.cache
def _library() -> str | None:
  """Compiles the code unless it has been, and tells XLA of it: its name."""
  if os.environ.get(SWITCH) == "0" or jax.default_backend() != "cpu":
    return None
  try:
    digest, library = _loaded()
  except _Refused as error:
    _LOG.warning("All computations are left to XLA: %s", error)
    return None
  except subprocess.CalledProcessError as error:
    _LOG.warning("All computations are left to XLA: %s\n%s", error,
                 error.stderr[-1000:])
    return None
  except (OSError, RuntimeError) as error:
    _LOG.info("All computations are left to XLA: %s", error)
    return None
  for name in _HANDLERS:
    jax.ffi.register_ffi_target(
        _target(name, digest), jax.ffi.pycapsule(getattr(library, name)),
        platform="cpu")
  return digest


def _loaded():
  """The code, compiled for this CPU: the digest of it, and the library.

  Raises:
    _Refused, OSError, RuntimeError, subprocess.CalledProcessError: see
      `_compiled` and `_compiler`.
  """
  compiler = _compiler()
  with _folder() as folder:
    path = _compiled(compiler, folder)
    try:
      return _digest(compiler), ctypes.cdll.LoadLibrary(str(path))
    except OSError as error:
      raise _Refused(f"'{path}' cannot be loaded: {error}") from error


def _compiler() -> list[str]:
  """The command that compiles.

  Raises:
    FileNotFoundError: if there is none.
    _Refused: if what `CXX` says is none.
  """
  told = os.environ.get("CXX", "").strip() or "c++"
  try:
    command = shlex.split(told)
  except ValueError as error:
    raise _Refused(f"CXX={told!r} is no command: {error}") from error
  if shutil.which(command[0]) is None:
    raise FileNotFoundError(f"there is no C++ compiler {command[0]!r}")
  return command


def _compiled(compiler, folder) -> pathlib.Path:
  """The library in a folder, where it is made unless it is there and whole.

  Its name tells what it was made of and what is in it: file systems may lose
  the end of a file, and to load such a one would kill the process.

  Raises:
    OSError: if the folder cannot be written to.
    subprocess.CalledProcessError: if the compiler refuses.
  """
  digest = _digest(compiler)
  found = list(folder.glob(f"{digest}-*.so"))
  for path in found:
    if path.stem == f"{digest}-{_contents(path)}":
      return path
  _LOG.warning("Compiling %s, once on this machine.", _SOURCES)
  _sweep(folder, _BUILD, "tmp")
  with tempfile.TemporaryDirectory(dir=folder, prefix=_BUILD) as build:
    made = pathlib.Path(build) / "made.so"
    subprocess.run([*_command(compiler), "-o", str(made)], check=True,
                   capture_output=True, text=True)
    path = folder / f"{digest}-{_contents(made)}.so"
    # At once: other processes may be at it as well.
    made.replace(path)
  for damaged in found:
    if damaged != path:
      damaged.unlink(missing_ok=True)
  return path


def _command(compiler) -> list[str]:
  return [*compiler, *_FLAGS, "-isystem", jax.ffi.include_dir(),
          str(_SOURCES / "handlers.cc")]


def _contents(path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()


def _sweep(folder, *prefixes) -> None:
  """Removes what builds have left there that were killed."""
  for path in folder.iterdir():
    with contextlib.suppress(OSError):
      if path.name.startswith(prefixes) and (
          _is_private(path.lstat()) and
          path.lstat().st_mtime < time.time() - _BUILD_SECONDS):
        shutil.rmtree(path)


@contextlib.contextmanager
def _folder():
  """Where libraries are kept; or, with a warning, one of this process alone.

  Whoever may write to the folder may have this process run anything.
  """
  parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  folder = pathlib.Path(parent) / "decoding_jax"
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  if _is_private(folder.stat()):
    yield folder
    return
  _LOG.warning("'%s' is not used, since it belongs to or may be written by "
               "others: each program will compile anew.", folder)
  _sweep(pathlib.Path(tempfile.gettempdir()), _BUILD)
  with tempfile.TemporaryDirectory(prefix=_BUILD) as private:
    yield pathlib.Path(private)


def _is_private(status) -> bool:
  """Whether a file is this user's, and nobody else may write to it."""
  return not hasattr(os, "getuid") or (
      status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _digest(compiler) -> str:
  """Of all that the library depends on: machines may share the folder."""
  version = subprocess.run([*compiler, "--version"], check=False,
                           capture_output=True, text=True).stdout
  sources = [(path.name, path.read_text())
             for path in sorted(_SOURCES.glob("*.[ch]*"))]
  parts = (compiler, _FLAGS, version, sources, jaxlib.__version__, _cpu())
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
  """What this CPU is, with the instructions that it has where they are told."""
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.exists() else []
  told = {line for line in lines
          if line.lower().startswith(("flags", "features", "model name"))}
  return " ".join([platform.machine(), platform.processor(), *sorted(told)])
