"""Compares what `auto` would choose of a run's trees with what was measured.

  python -m experiments.plan_check --workdir=runs/verification

Of each temperature, `auto_method` measures the acceptance of three short runs
and estimates that of all ways to verify. At equal nodes it would take the tree
that promises most tokens a call. Prints that tree, and whether the run has
measured another one whose interval of block efficiency is above it.
"""

import math
import pathlib

from absl import flags
import jax
import ml_collections
import numpy as np

from decoding_jax.speculation import tree_planning
from decoding_jax.speculation import verifiers
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from experiments.data import prompt_tasks
from experiments.devices import model_pair
from experiments.evaluation import results_store
from experiments.evaluation import run as evaluation_run
from experiments.timing import auto_method


def main():
  workdir = pathlib.Path(WORKDIR.value)
  settings, records = results_store.of_rsd(workdir)
  # The task that was run is all that is kept of them.
  settings["tasks"] = ({settings["task"]: settings["tasks"]}
                       if settings["tasks"] else {})
  config = ml_collections.ConfigDict(settings)
  found = {(r["method"], r["temperature"]): r["metrics"]["block_efficiency"]
           for r in records}
  pair = model_pair.open_pair(config.target, config.draft, config.dtype,
                              config.draft_dtype, config.weights,
                              config.draft_weights)
  pair = model_pair.with_params(pair)
  config.prompts = config.batch = min(config.prompts, PROMPTS.value)
  batch = evaluation_run.make_batches(
      config, prompt_tasks.load(config, pair).prompts)[0][0]
  lines = [["T", "nodes", "auto takes", "expects", "measured", "best measured",
            "measured", "in its interval"]]
  for temperature in sorted({t for _, t in found}):
    accepts = auto_method.acceptances(
        pair, batch[1], batch[2], config.max_new_tokens,
        evaluation_run.sampling(config, temperature))
    jax.clear_caches()
    for point in config.budgets:
      measured = {}
      for spec in config.trees.budget[str(point)]:
        name = method_specs.read(spec).name
        if (name, temperature) in found:
          measured[name] = (predicted(spec, accepts, temperature),
                            found[name, temperature])
      lines.append([f"{temperature:g}", str(point), *verdict(measured)])
  print(text_tables.plain_table(lines))


def predicted(spec, accepts, temperature) -> float:
  """Returns the tokens of a step that `auto` expects; -inf if it tries none.

  It tries no independent samples, and of rules those of
  `text_estimates.acceptances`: not `rheo`, `gbv` and others that need a
  derivation of their own.

  Args:
    spec: of a chain, `rsd_c`, `rsd_s`, `specinfer` or `opt_tree`.
    accepts: of `auto_method.acceptances`.
    temperature: at 0 there is one way to verify.

  Raises:
    UserError: for another method.
  """
  name, sizes = method_specs.parse(spec)
  rule = verifiers.canonical(sizes.get("verification", verifiers.USUAL))
  rule = rule if temperature else verifiers.USUAL
  if name == "opt_tree":
    trees = tree_planning.best_trees(accepts["match"], sizes["nodes"],
                                     sizes["depth"])
    return tree_planning.expected_tokens(trees[-1], accepts["match"])
  if name not in ("speculative", "rsd_c", "rsd_s", "specinfer"):
    raise launch.UserError(f"{name}: chains, rsd_c, rsd_s, specinfer and "
                           "opt_tree are compared.")
  if rule not in accepts or name == "specinfer":
    return -math.inf
  if name == "rsd_s":
    return tree_planning.beam_tokens(sizes["width"], sizes["depth"],
                                     accepts[rule])
  layout = method_specs.read(spec).greedy.drafter.layout
  widths = (1, *layout.widths)
  return tree_planning.expected_tokens(
      tuple((b,) * n for b, n in zip(layout.branching, widths)), accepts[rule])


def verdict(measured) -> list[str]:
  """Returns the cells of a row.

  Args:
    measured: dict from names to (expected tokens, [figure, low, high]).
  """
  taken = max(measured, key=lambda name: measured[name][0])
  best = max(measured, key=lambda name: measured[name][1][0])
  expects, figure = measured[taken]
  inside = figure[0] >= np.nan_to_num(measured[best][1][1] or np.nan)
  return [taken, f"{expects:.2f}", text_tables.plus_minus(*figure), best,
          text_tables.plus_minus(*measured[best][1]), "yes" if inside else "no"]


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  WORKDIR = flags.DEFINE_string("workdir", "runs/verification",
                                "Folder of a run of experiments.rsd.")
  PROMPTS = flags.DEFINE_integer("prompts", 32, "Prompts of the short runs.",
                                 lower_bound=1)
  launch.run(main)
