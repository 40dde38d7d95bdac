"""Flags for the sizes of a method."""

import inspect
import json

from absl import flags

import decoding_jax as dj
from experiments.app import launch

# Those that a method needs and no flag sets have defaults.
_SIZES = {
    "width": (flags.DEFINE_integer("width", None, "Nodes of a level."), 3),
    "depth": (flags.DEFINE_integer("depth", None, "Drafted tokens."), 4),
    "num_paths": (flags.DEFINE_integer("num_paths", None, "Paths."), 3),
    "num_beams": (flags.DEFINE_integer("num_beams", None, "Beams."), 4),
    "num_groups": (flags.DEFINE_integer("num_groups", None, "Of beams."), 2),
    "branching": (flags.DEFINE_string(
        "branching", None, "Children of each node of level 0, 1, ...: 2,2,1."),
        (2, 2, 1)),
    "children": (flags.DEFINE_string(
        "children", None, "Children of each node, level after level: "
        "2/2,0/1,1."), ((2,), (2, 0), (1, 1))),
    "verification": (flags.DEFINE_string(
        "verification", None, "token or block of speculative; recursive or "
        "traversal of rsd_c, rsd_s and sequoia."), None),
}
_MORE = flags.DEFINE_string(
    "sizes", "", 'Others, of a method of your own: {"rounds": 3}.')
# There is none where these flags are.
_STEERED_BY_REWARDS = ("best_of_n", "cdlh", "cdsl")


def from_flags(name, more=()):
  """The sizes of a method: those of flags, and defaults of others it needs.

  Args:
    name: of a method.
    more: what else could be given as a name, for the error.

  Returns:
    dict of arguments of the method.

  Raises:
    UserError: for an unknown name, a flag that is no size, or a method that
      needs what no flag sets.
  """
  launch.check_names("--method", [name], more)
  if name in _STEERED_BY_REWARDS:
    raise launch.UserError(
        f"--method={name} is steered by a reward, of which there is none here; "
        "experiments.cdsl has rewards.")
  given = {**_given(), **_more()}
  needed = [size for size, parameter in inspect.signature(
      getattr(dj.methods, name)).parameters.items()
            if parameter.default is parameter.empty and size not in given]
  unset = [size for size in needed if size not in _SIZES]
  if unset:
    raise launch.UserError(
        f"--method={name} needs {', '.join(unset)}, for which there is no flag "
        f"but --sizes='{json.dumps(dict.fromkeys(unset, 2))}'.")
  return {**{size: _SIZES[size][1] for size in needed}, **given}


def check_none(name):
  """Raises `UserError` if flags give sizes, for a method that chooses them."""
  given = [*_given(), *_more()]
  if given:
    raise launch.UserError(f"--method={name} chooses sizes by itself, and "
                           f"{', '.join(given)} would not be used.")


def _given():
  """The sizes of those flags that are set."""
  given = {size: flag.value for size, (flag, _) in _SIZES.items()
           if flag.value is not None}
  if "branching" in given:
    given["branching"] = _numbers("branching", given["branching"])
  if "children" in given:
    given["children"] = tuple(_numbers("children", level)
                              for level in given["children"].split("/"))
  return given


def _more():
  try:
    found = json.loads(_MORE.value or "{}")
  except ValueError as e:
    raise launch.UserError(f"--sizes={_MORE.value}: no JSON: {e}.") from e
  if not isinstance(found, dict):
    raise launch.UserError(f"--sizes={_MORE.value}: sizes by their names, as "
                           '{"rounds": 3}, are needed.')
  return found


def _numbers(name, text):
  try:
    return tuple(map(int, text.split(",")))
  except ValueError as e:
    raise launch.UserError(
        f"--{name}: {text!r} is no list of whole numbers, as 2,1 is.") from e
