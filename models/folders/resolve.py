"""Names of models: a folder, a shipped model, or one of the hub."""

import pathlib

from models.folders import hub
from models.folders import json_files

PRETRAINED = pathlib.Path(__file__).parents[1] / "pretrained"


def folder(name) -> pathlib.Path:
  """Returns the folder of a model; an existing folder precedes a shipped model.

  Args:
    name: a folder, the name of a shipped model, or "hub:owner/name", which is
      downloaded once.

  Returns:
    A folder that exists.

  Raises:
    FileNotFoundError: if there is neither a folder nor a shipped model.
    ValueError: if the name is none of a folder, or the hub does not have it,
      see `hub.folder`.
  """
  if hub.is_hub(name):
    return hub.folder(str(name))
  for path in (pathlib.Path(name), PRETRAINED / name):
    try:
      if str(name) and path.is_dir():
        return path
    except OSError as e:  # Too long a name, or no permission.
      raise ValueError(f"model '{json_files.shortened(str(name))}': "
                       f"{e.strerror}.") from e
  shipped = sorted(p.name for p in PRETRAINED.glob("*") if p.is_dir())
  raise FileNotFoundError(
      f"model '{name}' is neither a folder nor one of the shipped "
      f"{', '.join(shipped) or '(none)'}; a model of the Hugging Face hub is "
      "hub:owner/name.")
