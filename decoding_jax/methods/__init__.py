"""Decoding methods, one a file: `make` of `x.py` is `dj.methods.x`.

A method file defines `make`, which returns a `dj.Method`, and `EXAMPLES`, a
tuple of dicts of arguments of `make` at small sizes. Tests, `--help` and
`experiments.exactness` take their methods from there, so that a new method is
one new file.
"""

from collections.abc import Iterable
import functools
import importlib
import inspect
import pkgutil

from decoding_jax.types import Method

_MODULES = {}


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


def _cached(name, make):
  """Wraps `make` so that equal arguments give the same object.

  A method is a static argument of `generate`: equal methods that are different
  objects would be compiled twice. Arguments are equal in whichever form they
  are given: by position or name, default or not, list or tuple.
  """
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
  """Makes tuples of lists, arrays and other sequences, at all levels.

  Named tuples, such as a `LogitsProcessor`, are hashable as they are.
  """
  if isinstance(value, Iterable) and not (
      isinstance(value, str) or hasattr(value, "_fields")):
    return tuple(map(_hashable, value))
  return value


def _load(name):
  """Imports a method file once; the package's attribute is then its `make`."""
  if name not in _MODULES:
    module = importlib.import_module(f"{__name__}.{name}")
    if not callable(getattr(module, "make", None)):
      raise ImportError(f"{module.__file__} is in the folder of methods, but "
                        "has no function make that returns a dj.Method.")
    globals()[name] = _cached(name, module.make)
    _MODULES[name] = module
  return _MODULES[name]


def __getattr__(name):
  """Loads a method file that was added after the import of this package."""
  if name.startswith("_") or name not in names():
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  _load(name)
  return globals()[name]


for _name in names():
  _load(_name)

__all__ = [*names(), "example_arguments", "examples", "names"]
