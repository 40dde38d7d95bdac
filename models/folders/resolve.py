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

  Args:
    name: a folder, a GGUF file, the name of a shipped model, "hub:owner/name",
      which is downloaded once, or "package:name", of an installed package.

  Returns:
    A folder that exists, or a file with the suffix ".gguf".

  Raises:
    FileNotFoundError: if there is neither a folder nor a shipped model.
    ValueError: if the name is none of a folder, or hub or packages do not have
      it, see `hub.folder` and `packages.folder`.
  """
  if hub.is_hub(name):
    return hub.folder(str(name))
  if packages.is_package(name):
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
