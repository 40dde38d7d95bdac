"""Packages that import what they export when it is first asked for."""

import importlib


def attach(package: dict, exports: dict[str, tuple[str, ...]]) -> None:
  """Has modules of a package be imported when a name is used (PEP 562).
  `exports` are the names that the package, its `globals()`, takes from each of
  its modules; of one without names it is the module itself. Of ".other.module",
  it is one of the package next to it."""
  modules = {name: module for module, names in exports.items()
             for name in names or (module.rpartition(".")[2],)}

  def get(name):
    if name not in modules:
      raise AttributeError(
          f"module {package['__name__']!r} has no attribute {name!r}")
    module = importlib.import_module(f".{modules[name]}", package["__name__"])
    package[name] = getattr(module, name, module)
    return package[name]

  package["__getattr__"] = get
  package["__dir__"] = lambda: sorted({*package, *modules})
