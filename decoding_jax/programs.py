"""Compiled programs, of which the ones used last are kept.

A program for a CPU is mapped into memory in tens or hundreds of pieces. Linux
allows a process 65,530, and XLA ends the process when it gets no more: after
some hundred methods, or lengths of prompts, each of which has its own program.
So every set of static arguments gets a `jax.jit` of its own, and when there are
many programs the ones that were not called for the longest time are dropped. A
later call compiles them again.
"""

import collections
from collections.abc import Iterable
import functools
import gc
import inspect
import pathlib
import threading
import warnings

import jax
import numpy as np

from decoding_jax import kernels

# Sets of static arguments whose programs are kept, at most.
MOST = 128
# Memory mappings of a process at which programs are dropped, as a part of those
# that Linux allows.
_CROWDED = 0.5
_MAPPINGS = pathlib.Path("/proc/self/maps")
_LIMIT = pathlib.Path("/proc/sys/vm/max_map_count")

# (function, static arguments) -> its jitted form, the one used last at the end.
_kept = collections.OrderedDict()
_lock = threading.RLock()


def jit(function, *, static_argnums, donate_argnums=()):
  """Compiles a function like `jax.jit`, with an end to its programs. Static
  arguments stand before the others. Within a function that is traced it becomes
  part of that one's program. The result has `lower`, `trace` and `clear_cache`
  of `jax.jit`, and `num_programs()` now."""
  arguments = dict(static_argnums=static_argnums, donate_argnums=donate_argnums)
  inner = jax.jit(function, **arguments)

  @functools.wraps(function)
  def call(*args, **kwargs):
    if is_traced((args, kwargs)):
      return inner(*args, **kwargs)
    key = call, *(args[i] for i in static_argnums)
    program = _program(key, function, arguments)
    before = program._cache_size()  # pylint: disable=protected-access
    out = program(*args, **kwargs)
    if program._cache_size() > before:  # pylint: disable=protected-access
      make_room()
    return out

  call.lower, call.trace = inner.lower, inner.trace
  call.clear_cache = lambda: (inner.clear_cache(), _drop(_keys_of(call)))
  call.num_programs = lambda: sum(
      _kept[key]._cache_size()  # pylint: disable=protected-access
      for key in _keys_of(call))
  return call


def memoized(make, name: str | None = None):
  """Wraps a function so that equal arguments give the same object. Methods and
  processors are static arguments: equal ones that are different objects would
  be compiled twice. Arguments are equal in whichever form they are given: by
  position or name, default or not, list or tuple. `name` is for errors."""
  signature, cached = inspect.signature(make), functools.lru_cache(
      maxsize=None, typed=True)(make)

  @functools.wraps(make)
  def made(*args, **kwargs):
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError as e:
      raise TypeError(f"{name or make.__name__}{signature}: {e}.") from e
    bound.apply_defaults()
    return cached(*map(_hashable, bound.args),
                  **{k: _hashable(v) for k, v in bound.kwargs.items()})

  return made


def _hashable(value):
  """Makes tuples of lists, arrays and other sequences, at all levels. Named
  tuples, such as a `LogitsProcessor`, are hashable as they are."""
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    value = value.tolist()
  if isinstance(value, Iterable) and not (
      isinstance(value, (str, bytes)) or hasattr(value, "_fields")):
    return tuple(map(_hashable, value))
  return value


def is_traced(tree) -> bool:
  """Tells whether a call with these arguments is being traced."""
  return kernels.is_tracing() or any(
      isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def make_room():
  """Drops the oldest programs while there are too many; warns if in vain."""
  with _lock:
    _drop(list(_kept)[:max(0, len(_kept) - MOST)])
    while is_crowded() and _kept:
      _drop(list(_kept)[:-(-len(_kept) // 2)])
  if is_crowded():
    warnings.warn(
        f"this process has {num_mappings()} memory mappings of the "
        f"{_most_mappings()} that vm.max_map_count allows, most of them of "
        "compiled programs; XLA ends it when there are no more. "
        "jax.clear_caches() drops programs.", RuntimeWarning, stacklevel=2)


def clear():
  """Drops all programs of this library."""
  with _lock:
    _drop(list(_kept))


def is_crowded() -> bool:
  """Tells whether half of the memory mappings of a process are used up."""
  return num_mappings() > _CROWDED * _most_mappings()


def num_mappings() -> int:
  """Returns the memory mappings of this process; 0 where nobody counts them."""
  try:
    return _MAPPINGS.read_bytes().count(b"\n")
  except OSError:
    return 0


@functools.cache
def _most_mappings():
  try:
    return int(_LIMIT.read_text())
  except (OSError, ValueError):
    return 65_530


def _program(key, function, arguments):
  """Returns the jitted function of a set of static arguments."""
  with _lock:
    if key not in _kept:
      # A function of its own: programs of one function share a cache.
      own = functools.wraps(function)(lambda *a, **k: function(*a, **k))
      _kept[key] = jax.jit(own, **arguments,
                           compiler_options=kernels.compiler_options())
    _kept.move_to_end(key)
    return _kept[key]


def _keys_of(call):
  with _lock:
    return [key for key in _kept if key[0] is call]


def _drop(keys):
  with _lock:
    for key in keys:
      _kept.pop(key).clear_cache()
  if keys:
    gc.collect()  # Jitted functions and what they hold refer to each other.
