"""Names of models: a folder or file, shipped, of the hub, or of a package."""

import pathlib

from models.folders import hub
from models.folders import json_files
from models.folders import packages

PRETRAINED = pathlib.Path(__file__).parents[1] / "pretrained"
# Suffix of a file that is a model.
GGUF = ".gguf"


def folder(name) -> pathlib.Path:
  """Returns the folder of a model; an existing folder precedes a shipped model.
  `name` is a folder, a GGUF file, the name of a shipped model, "hub:owner/name"
  or "package:name". Raises FileNotFoundError if there is none, and ValueError
  if it cannot be had; see `hub.folder`, `packages.folder`."""
  if hub.is_hub(name):
    return hub.folder(str(name))
  if str(name).startswith(packages.PREFIX):
    return packages.folder(str(name))
  for path in (pathlib.Path(name), PRETRAINED / name):
    try:
      if str(name) and (path.is_dir()
                        or path.suffix == GGUF and path.is_file()):
        return path
    except OSError as e:  # Too long a name, or no permission.
      raise ValueError(f"model '{json_files.shortened(str(name))}': "
                       f"{e.strerror}.") from e
  shipped = sorted(p.name for p in PRETRAINED.glob("*") if p.is_dir())
  raise FileNotFoundError(
      f"model '{name}' is neither a folder nor one of the shipped "
      f"{', '.join(shipped) or '(none)'}, nor a {GGUF} file; a model of "
      "the Hugging Face hub is hub:owner/name, one of an installed package "
      "package:name.")
