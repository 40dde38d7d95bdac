"""The methods that a config of `experiments.rsd` compares, and their points."""

import decoding_jax as dj
from decoding_jax import types
from decoding_jax.speculation import tree
from decoding_jax.speculation.drafters import language_model
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import draft_levels
from experiments.devices import draft_kind


def from_config(config):
  """Reads the methods to run, and the points of the tables they belong to.

  The autoregressive method is the first, each is there once; points are
  (experiment, point) -> names of methods. A point without trees, or a method
  that cannot be made, is a `UserError`.
  """
  launch.check_positive(config, "prompts", "prompt_length", "batch")
  if config.queue and config.queue <= config.batch:
    raise launch.UserError(f"queue={config.queue}: 0, or more than "
                           f"batch={config.batch}, is allowed.")
  if not config.temperatures:
    raise launch.UserError("temperatures is empty: one is needed.")
  # "rsd_s": all of its trees; "rsd_s(3, 4)": one.
  wanted = {x: method_specs.read(x, "methods").name if "(" in str(x) else
            method_specs.parse(x, "methods")[0] for x in config.methods}
  methods = [dj.methods.autoregressive()]
  points, known = {}, {"autoregressive"}
  for experiment, chosen in (("length", config.lengths),
                             ("budget", config.budgets)):
    trees = config.trees.get(experiment, {})
    for point in chosen:
      if str(point) not in trees:
        raise launch.UserError(f"{experiment} {point!r} has no trees; "
                               f"there are {', '.join(trees) or 'none'}.")
      where = f"trees.{experiment}.{point}"
      built = [method_specs.read(spec, where) for spec in trees[str(point)]]
      names = [method_specs.parse(spec)[0] for spec in trees[str(point)]]
      known |= {*names, *(method.name for method in built)}
      built = [method for name, method in zip(names, built) if not wanted
               or {name, method.name} & {*wanted.values()}]
      methods += built
      points[experiment, point] = [method.name for method in built]
  for given, name in wanted.items():
    if name not in known:
      raise launch.UserError(
          f"--config.methods: {given!r} has no tree here, by --config.trees, "
          f"lengths and budgets; there are {', '.join(sorted(known))}.")
  return list(method_specs.by_name(methods).values()), points


def that_fit(pair, methods, points):
  """Leaves out trees that are deeper than a head, or of more draft models.

  Returns methods and points without them, and a sentence that says so, or "".
  """
  most = draft_levels.most(pair.draft)
  models = types.num_models(pair.draft)
  left = [method for method in methods if _fits(method, pair.draft, most)]
  if len(left) == len(methods):
    return methods, points, ""
  names = {method.name for method in left}
  points = {point: [name for name in of_point if name in names]
            for point, of_point in points.items()}
  number = len(methods) - len(left)
  return left, points, (
      f"The head drafts {most} levels: {number} deeper trees were left out."
      if most else f"The draft is of {models} model(s): {number} method(s) of "
      "another number were left out.")


def _fits(method, draft, most):
  """Tells whether a head of `most` levels, or `most` models, can draft."""
  program = method.sampled or method.greedy
  if not isinstance(program, dj.Pair):
    return True
  if most and draft_kind.needs_draft(method) and (
      tree.depth(program.drafter.layout) > most):
    return False
  if program.drafter.draws != dj.Draws.OF_SEVERAL:
    return True
  try:
    return bool(language_model.draft_calls(program.drafter, draft))
  except ValueError:
    return False
