"""Methods, one a file: a file `x.py` with a `make` is `methods.x(...)`."""

import importlib
import pkgutil

__all__ = sorted(module.name for module in pkgutil.iter_modules(__path__))

for _name in __all__:
  globals()[_name] = importlib.import_module(f"{__name__}.{_name}").make
