"""Decoding methods, one a file: `make` of `x.py` is `dj.methods.x`.

A method file defines `make`, which returns a `dj.Method`, and `EXAMPLES`, a
tuple of dicts of arguments of `make` at small sizes. Tests, `--help` and
`experiments.exactness` take their methods from there, so that a new method is
one new file. A file is imported when its method is first asked for.
"""

from collections.abc import Iterable
import functools
import importlib
import inspect
import pkgutil
import sys
import types

from decoding_jax.types import Method


def names() -> list[str]:
  """Returns the names of all methods, sorted."""
  return sorted(module.name for module in pkgutil.iter_modules(__path__))


def example_arguments() -> dict[str, tuple[dict, ...]]:
  """Returns, for each method, the arguments of its examples."""
  return {name: tuple(map(dict, getattr(_module(name), "EXAMPLES", ())))
          for name in names()}


def examples() -> dict[str, tuple[Method, ...]]:
  """Returns, for each method, small instances of it."""
  return {name: tuple(__getattr__(name)(**arguments) for arguments in calls)
          for name, calls in example_arguments().items()}


def memoized(name, make):
  """Wraps `make` so that equal arguments give the same object. A method is a
  static argument of `generate`: equal methods that are different objects would
  be compiled twice. Arguments are equal in whichever form they are given: by
  position or name, default or not, list or tuple."""
  signature, cached = inspect.signature(make), functools.cache(make)

  @functools.wraps(make)
  def method(*args, **kwargs):
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError as e:
      raise TypeError(f"methods.{name}{signature}: {e}.") from e
    bound.apply_defaults()
    return cached(*map(_hashable, bound.args),
                  **{k: _hashable(v) for k, v in bound.kwargs.items()})

  return method


def _hashable(value):
  """Makes tuples of lists, arrays and other sequences, at all levels. Named
  tuples, such as a `LogitsProcessor`, are hashable as they are."""
  if isinstance(value, Iterable) and not (
      isinstance(value, str) or hasattr(value, "_fields")):
    return tuple(map(_hashable, value))
  return value


class _Methods(types.ModuleType):
  """This package, in which a file that is imported stands as its `make`."""

  def __setattr__(self, name, value):
    if isinstance(value, types.ModuleType) and callable(
        getattr(value, "make", None)):
      value = memoized(name, value.make)
    super().__setattr__(name, value)


def _module(name):
  """Imports a method file; the package's attribute is then its `make`."""
  module = importlib.import_module(f"{__name__}.{name}")
  if not callable(getattr(module, "make", None)):
    raise ImportError(f"{module.__file__} is in the folder of methods, but "
                      "has no function make that returns a dj.Method.")
  return module


def __getattr__(name):
  if name.startswith("_") or name not in names():
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}",
                         name=name, obj=sys.modules[__name__])
  _module(name)
  return globals()[name]


def __dir__():
  return sorted({*globals(), *names()})


sys.modules[__name__].__class__ = _Methods

__all__ = [*names(), "example_arguments", "examples", "memoized",
           "names"]
