"""Decoding methods, one a file: `make` of `x.py` is `dj.methods.x`.

A method file defines `make`, which returns a `dj.Method`, and `EXAMPLES`, a
tuple of dicts of arguments of `make` at small sizes. Tests, `--help` and
`experiments.exactness` take their methods from there, so that a new method is
one new file.
"""

import functools
import importlib
import inspect
import pkgutil

from decoding_jax.types import Method


def names() -> list[str]:
  """Returns the names of all methods, sorted."""
  return sorted(module.name for module in pkgutil.iter_modules(__path__))


def example_arguments() -> dict[str, tuple[dict, ...]]:
  """Returns, for each method, the arguments of its examples."""
  return {name: tuple(map(dict, getattr(_load(name), "EXAMPLES", ())))
          for name in names()}


def examples() -> dict[str, tuple[Method, ...]]:
  """Returns, for each method, small instances of it."""
  return {name: tuple(globals()[name](**arguments) for arguments in found)
          for name, found in example_arguments().items()}


def _with_defaults(name, make):
  """Wraps `make` so that it sees all arguments by position, defaults included.

  A method is a static argument of `generate`. `make` caches by the form of a
  call, and the same sizes in two forms would be compiled twice.
  """
  signature = inspect.signature(make)

  @functools.wraps(make)
  def method(*args, **kwargs):
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError as e:
      raise TypeError(f"methods.{name}{signature}: {e}.") from e
    bound.apply_defaults()
    return make(*bound.args, **bound.kwargs)

  return method


@functools.cache
def _load(name):
  """Imports a method file; the package's attribute is then its `make`."""
  module = importlib.import_module(f"{__name__}.{name}")
  if not callable(getattr(module, "make", None)):
    raise ImportError(f"{module.__file__} is in the folder of methods, but has "
                      "no function make that returns a dj.Method.")
  globals()[name] = _with_defaults(name, module.make)
  return module


def __getattr__(name):
  """Loads a method file that was added after the import of this package."""
  if name.startswith("_") or name not in names():
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  _load(name)
  return globals()[name]


for _name in names():
  _load(_name)

__all__ = [*names(), "example_arguments", "examples", "names"]
