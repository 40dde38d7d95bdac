"""The methods that a config of `experiments.rsd` compares, and their points."""

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs


def from_config(config):
  """Reads the methods to run, and the points of the tables they belong to.

  Args:
    config: see `configs/rsd.py`.

  Returns:
    list of methods, the autoregressive one first and each once; and a dict from
    (experiment, point) to the names of its methods.

  Raises:
    UserError: for a point without trees, or a method that cannot be made.
  """
  launch.check_positive(config, "prompts", "prompt_length", "batch")
  if config.queue and config.queue <= config.batch:
    raise launch.UserError(f"queue={config.queue}: 0, or more than "
                           f"batch={config.batch}, is allowed.")
  if not config.temperatures:
    raise launch.UserError("temperatures is empty: one is needed.")
  for name in config.methods:
    method_specs.check_name(name, "methods")
  methods = {"autoregressive": dj.methods.autoregressive()}
  points = {}
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
      built = [method for name, method in zip(names, built)
               if name in (config.methods or names)]
      methods.update({method.name: method for method in built})
      points[experiment, point] = [method.name for method in built]
  return list(methods.values()), points
