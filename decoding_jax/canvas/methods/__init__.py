"""Methods of filling a canvas, one a file: `make` of `x.py` is `methods.x`.

A file has `make`, which returns a `canvas.Method`, and `EXAMPLES`, a tuple of
dicts of its arguments at small sizes, from which tests take their methods.
Equal arguments give the same object, so that a program is compiled once.
"""

import functools
import importlib
import pkgutil

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)}


def names() -> list[str]:
  """Returns the names of all methods, sorted."""
  return sorted(_MODULES)


def example_arguments() -> dict[str, tuple[dict, ...]]:
  """Returns, for each method, the arguments of its examples."""
  return {name: _MODULES[name].EXAMPLES for name in names()}


for _name, _module in _MODULES.items():
  globals()[_name] = functools.cache(_module.make)

__all__ = [*names(), "example_arguments", "names"]
