"""Products and attention of a few tokens by code of our own, on a CPU.

XLA packs weights into other arrays first, in each product; with few columns
that takes longer than the product. The code in `models/cpu` reads them where
they are. It is compiled when it is first needed, some seconds, and kept in the
folder `decoding_jax` of `XDG_CACHE_HOME`, or of `~/.cache`. The compiler is the
one that `CXX` names, or c++. Where there is none, or `DECODING_JAX_NATIVE=0`
says so, XLA computes all of it.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile

from absl import logging
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

# Columns, at most: with more, packing weights pays.
MOST = 64
# What turns it off, when it is 0.
SWITCH = "DECODING_JAX_NATIVE"
_SOURCES = pathlib.Path(__file__).with_name("cpu")
_HANDLERS = ("product", "attention")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-w")
_DTYPES = ("float32", "bfloat16", "int8")


def computes(array, width) -> bool:
  """Whether there is code for a product, or for attention.

  Args:
    array: what columns or queries are multiplied with.
    width: how many there are.

  Returns:
    Whether it can be called on a CPU.
  """
  return (width <= MOST and str(array.dtype) in _DTYPES and bool(array.size)
          and is_there())


def matmul(kernel, x):
  """A product in float32; no column depends on what others are there.

  Args:
    kernel: `[out, in]`, float32, bfloat16 or int8.
    x: `[in, n]`.

  Returns:
    `[out, n]` float32.
  """
  return _call("product", (len(kernel), x.shape[1]), kernel,
               x.astype(jnp.float32).T)


def attention(q, parts, cap=0.0):
  """See `products.attention`; slots that nobody sees are not read.

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
  y = _call("attention", queries.shape, queries, *arrays, cap=np.float32(cap))
  return y.transpose(1, 2, 4, 0, 3).astype(q.dtype)


def is_there() -> bool:
  """Whether the code could be compiled, and is wanted, on this CPU."""
  return _library() is not None


def _call(name, shape, *arrays, **attributes):
  return jax.ffi.ffi_call(
      _target(name, _library()), jax.ShapeDtypeStruct(shape, jnp.float32),
      vmap_method="sequential")(*arrays, **attributes)


def _target(name, library):
  # Programs are kept on disk: they must not find the code of other sources.
  return f"decoding_jax_{name}_{library}"


@functools.cache
def _library() -> str | None:
  """Compiles the code unless it has been, and tells XLA of it: its name."""
  if os.environ.get(SWITCH) == "0" or jax.default_backend() != "cpu":
    return None
  try:
    path = _compiled()
    library = ctypes.cdll.LoadLibrary(str(path))
  except subprocess.CalledProcessError as error:
    logging.warning("Products of few columns are left to XLA: %s\n%s", error,
                    error.stderr[-1000:])
    return None
  except (OSError, RuntimeError) as error:
    logging.info("Products of few columns are left to XLA: %s", error)
    return None
  for name in _HANDLERS:
    jax.ffi.register_ffi_target(
        _target(name, path.stem), jax.ffi.pycapsule(getattr(library, name)),
        platform="cpu")
  return path.stem


def _compiled() -> pathlib.Path:
  """The library, compiled for this CPU.

  Raises:
    OSError: if there is no compiler, or no folder that can be written to.
    RuntimeError: if there is no home.
    subprocess.CalledProcessError: if the compiler refuses.
  """
  compiler = shlex.split(os.environ.get("CXX") or "c++")
  if shutil.which(compiler[0]) is None:
    raise FileNotFoundError(f"there is no C++ compiler {compiler[0]!r}")
  command = [*compiler, *_FLAGS, "-I", jax.ffi.include_dir(),
             str(_SOURCES / "handlers.cc")]
  path = _folder() / f"{_digest(command)}.so"
  if not path.exists():
    logging.warning("Compiling %s, once on this machine.", _SOURCES)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
      made = pathlib.Path(folder) / path.name
      subprocess.run([*command, "-o", str(made)], check=True,
                     capture_output=True, text=True)
      # At once: other processes may be at it as well.
      made.replace(path)
  return path


def _folder() -> pathlib.Path:
  parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  folder = pathlib.Path(parent) / "decoding_jax"
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def _digest(command) -> str:
  """Of all that the library depends on: machines may share the folder."""
  sources = [path.read_text() for path in sorted(_SOURCES.glob("*.[ch]*"))]
  parts = (" ".join(command), *sources, jaxlib.__version__, _cpu())
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
  """What this CPU is, with the instructions that it has where they are told."""
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.exists() else []
  told = {line for line in lines
          if line.lower().startswith(("flags", "features", "model name"))}
  return " ".join([platform.machine(), platform.processor(), *sorted(told)])
