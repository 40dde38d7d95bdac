"""Flags for the sizes of a method, read with `--method` by `method_specs`."""

import inspect
import json

from absl import flags

import decoding_jax as dj
from decoding_jax.speculation import expanders
from decoding_jax.speculation import verifiers
from experiments.app import launch
from experiments.app import method_specs

# Flags, and the sizes of a method that is given none.
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
        "verification", None, "How a path is chosen above temperature 0: "
        f"{', '.join(verifiers.names())}; a beam can be drawn for "
        f"{', '.join(verifiers.names(expanders.OF_BEAMS))}."), None),
}
_MORE = flags.DEFINE_string(
    "sizes", "", 'Sizes that have no flag, as JSON: {"rounds": 3}.')


def help_text(*others) -> str:
  """Returns the help of a flag `--method`.

  Args:
    *others: names that the flag takes besides those of methods.
  """
  return ("Method, with sizes or without: " +
          ", ".join([*others, *method_specs.examples()]) + ".")


def from_flags(spec: str, more=(), reward: bool = False) -> dj.Method:
  """Makes the method of `--method` and the flags of sizes.

  Sizes that nothing gives have defaults: those above, else those of the
  method's first example.

  Args:
    spec: of `--method`, a name or a call, see `method_specs`.
    more: what else could be given as a name, for the error.
    reward: whether there is a reward.

  Returns:
    The method.

  Raises:
    UserError: for an unknown name, a size that is not one of the method or
      given twice, a method that needs a size without a default, or one that
      needs a reward where there is none.
  """
  name, sizes = method_specs.parse({"name": spec, **_given()}, "--method", more)
  method = method_specs.read(
      {"name": name, **_defaults(name, sizes), **sizes}, "--method")
  if not reward and all(getattr(decoder, "needs_reward", False)
                        for decoder in (method.sampled, method.greedy)
                        if decoder):
    raise launch.UserError(
        f"--method={name} is steered by a reward, of which there is none here: "
        "experiments.generate has --reward, experiments.cdsl has those of "
        "tasks.")
  return method


def check_none(name):
  """Raises `UserError` if flags give sizes, for a method that chooses them."""
  given = _given()
  if given:
    raise launch.UserError(f"--method={name} chooses sizes by itself, and "
                           f"{', '.join(given)} would not be used.")


def _defaults(name, sizes):
  """Returns defaults of the sizes that a method needs and nothing gives."""
  examples = dj.methods.example_arguments()[name]
  defaults = {**(examples[0] if examples else {}),
              **{size: default for size, (_, default) in _SIZES.items()}}
  needed = [size for size, parameter in inspect.signature(
      getattr(dj.methods, name)).parameters.items()
            if parameter.default is parameter.empty and size not in sizes]
  unset = [size for size in needed if size not in defaults]
  if unset:
    arguments = ", ".join(f"{size}=2" for size in unset)
    raise launch.UserError(
        f"--method={name} needs {', '.join(unset)}: "
        f"--method='{name}({arguments})', or "
        f"--sizes='{json.dumps(dict.fromkeys(unset, 2))}'.")
  return {size: defaults[size] for size in needed}


def _given():
  """Returns the sizes that flags give."""
  given = {size: flag.value for size, (flag, _) in _SIZES.items()
           if flag.value is not None}
  if "branching" in given:
    given["branching"] = _numbers("branching", given["branching"])
  if "children" in given:
    given["children"] = tuple(_numbers("children", level)
                              for level in given["children"].split("/"))
  more = _more()
  twice = [size for size in more if size in given]
  if twice:
    raise launch.UserError(f"--sizes={_MORE.value}: {', '.join(twice)} is "
                           "given by a flag as well.")
  return {**given, **more}


def _more():
  try:
    found = json.loads(_MORE.value or "{}")
  except ValueError as e:
    raise launch.UserError(f"--sizes={_MORE.value}: no JSON: {e}.") from e
  if not isinstance(found, dict):
    raise launch.UserError(f"--sizes={_MORE.value}: sizes by their names, as "
                           '{"rounds": 3}, are needed.')
  return method_specs.freeze(found, "--sizes")


def _numbers(name, text):
  try:
    return tuple(map(int, text.split(",")))
  except ValueError as e:
    raise launch.UserError(
        f"--{name}: {text!r} is no list of whole numbers, as 2,1 is.") from e
