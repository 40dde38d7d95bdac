"""Which trees a config compares, and where in the tables they belong."""

import decoding_jax as dj
from experiments.app import launch


def from_config(config):
  """The methods to run, and where each belongs.

  Args:
    config: see `configs/rsd.py`.

  Returns:
    list of methods, the autoregressive one first and each once; and a dict from
    (experiment, point) to the names of its methods.

  Raises:
    UserError: for a point without trees, or trees that cannot be.
  """
  launch.check_positive(config, "prompts", "prompt_length", "batch")
  if config.queue and config.queue <= config.batch:
    raise launch.UserError(f"queue={config.queue}: 0, or more than "
                           f"batch={config.batch}, is allowed.")
  if not config.temperatures:
    raise launch.UserError("temperatures is empty: one is needed.")
  launch.check_names("methods", config.methods)
  methods = {"autoregressive": dj.methods.autoregressive()}
  points = {}
  for experiment, chosen in (("length", config.lengths),
                             ("budget", config.budgets)):
    trees = config.trees.get(experiment, {})
    for point in chosen:
      if str(point) not in trees:
        raise launch.UserError(f"{experiment} {point!r} has no trees; "
                               f"there are {', '.join(trees) or 'none'}.")
      built = [launch.method(spec) for spec in trees[str(point)]]
      built = [method for spec, method in zip(trees[str(point)], built)
               if spec["name"] in (config.methods or [spec["name"]])]
      methods.update({method.name: method for method in built})
      points[experiment, point] = [method.name for method in built]
  return list(methods.values()), points
