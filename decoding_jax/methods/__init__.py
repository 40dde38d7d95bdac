"""Decoding methods, one a file: `make` of `x.py` is `dj.methods.x`.

A method file defines `make`, which returns a `dj.Method`, and `EXAMPLES`, a
tuple of dicts of arguments of `make` at small sizes. Tests, `--help` and
`experiments.exactness` take their methods from there, so that a new method is
one new file. A file is imported when its method is first asked for.
"""

import importlib
import pkgutil
import sys
import types

from decoding_jax import programs
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


class _Methods(types.ModuleType):
  """This package, in which a file that is imported stands as its `make`."""

  def __setattr__(self, name, value):
    if isinstance(value, types.ModuleType) and callable(
        getattr(value, "make", None)):
      value = programs.memoized(value.make, f"methods.{name}")
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

__all__ = [*names(), "example_arguments", "examples", "names"]
