"""Functions of the user's own modules, named "my.module:make".

A name runs the code of its module, as `--config` does: take none from a file
that others may have written (docs/trust.md).
"""

import ast
import functools
import importlib
import inspect
import os
import pathlib
import re
import sys
import traceback

from experiments.app import file_digests
from experiments.app import launch

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)\s*(\(.*)?", re.DOTALL)
# Models are named so as well, see `models.folders.resolve`.
_MODELS = ("hub", "package")
CODE = "code of "
# A short digest of each module's file that was loaded, by CODE and its name.
DIGESTS: dict[str, str] = {}


def module_of(text: str) -> str:
  """Returns "my.module:" of "my.module:make(3)"; "" of any other text."""
  found = _NAME.fullmatch(text.strip())
  if not found or found[1] in _MODELS:
    return ""
  try:  # "a:f(1),b:g(2)" is two names.
    ast.parse(found[2] + (found[3] or ""), mode="eval")
  except (SyntaxError, ValueError):
    return ""
  return f"{found[1]}:"


@functools.cache
def load(name: str, where: str):
  """Imports the function "my.module:make"; errors name `where` it is given."""
  module_name, attribute = name.split(":")
  module = _import(module_name, f"{where}={name}")
  file = getattr(module, "__file__", None) or module_name
  found = getattr(module, attribute, None)
  if found is None:
    known = [x for x, value in vars(module).items()
             if callable(value) and not x.startswith("_")]
    hint = launch.nearest(attribute, known) if known else "it has no functions."
    raise launch.UserError(f"{where}={name}: {file} has no {attribute!r}: "
                           f"{hint}")
  try:
    inspect.signature(found)
  except (TypeError, ValueError) as e:
    raise launch.UserError(f"{where}={name} is of type {type(found).__name__}: "
                           "a Python function is needed.") from e
  if pathlib.Path(file).is_file():
    DIGESTS[CODE + module_name] = file_digests.of(file)[:16]
  return found


def _import(name, where):
  folder = os.getcwd()
  if not {folder, ""} & {*sys.path}:  # `python -P` leaves it out.
    sys.path.append(folder)
  try:
    return importlib.import_module(name)
  except Exception as e:
    if isinstance(e, ModuleNotFoundError) and f"{name}.".startswith(
        f"{e.name}."):
      raise launch.UserError(f"{where}: there is no module {e.name} in {folder}"
                             " or among installed packages.") from e
    last = traceback.extract_tb(e.__traceback__)[-1]
    raise launch.UserError(
        f"{where}: {name} cannot be imported: {type(e).__name__}: {e} "
        f"({last.filename}, line {last.lineno}).") from e
