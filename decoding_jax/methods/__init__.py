"""Methods, one a file: a file `x.py` with a `make` is `methods.x(...)`."""

import functools
import importlib
import inspect
import pkgutil

__all__ = sorted(module.name for module in pkgutil.iter_modules(__path__))


def _one_form(name, make):
  """Sizes by name or by position, defaults given or not: the same method.

  Methods are static arguments, and those that are cached under another form
  would be compiled once more.
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


def _make(name):
  module = importlib.import_module(f"{__name__}.{name}")
  if not callable(getattr(module, "make", None)):
    raise ImportError(f"'{module.__file__}' is taken for a method, and has no "
                      "function make that returns a dj.Method.")
  return _one_form(name, module.make)


for _name in __all__:
  globals()[_name] = _make(_name)
