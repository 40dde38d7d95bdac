"""Measures coverage, quality and cost of methods of constrained decoding.

  python -m experiments.cdsl --config=configs/cdsl.py

Greedy decoding is timed again in the course of each method, and the method's
time is relative to that: machines are noisy and drift.
"""

import json
import sys

from absl import flags

from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption
from experiments.data import constrained_tasks
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import shared_prefix
from experiments.evaluation import constrained_cells
from experiments.evaluation import constrained_tables
from experiments.harness import provenance
from experiments.harness import store
from experiments.scoring import task_rewards

# These only choose lines; a line does not depend on the others.
_FREE = ("methods", "compilation_cache")
# --help shows flags of a main alone, and of modules that it adopts.
flags.adopt_module_key_flags(mesh)
flags.adopt_module_key_flags(shared_prefix)


def main():
  config = launch.config(CONFIG)
  entries = constrained_cells.entries(config).values()
  launch.check_positive(config, "batch")
  mesh.join(config.target, config.batch)
  preemption.listen()
  pair = model_pair.of_config(config, config.draft)
  task = constrained_tasks.load(config, pair)
  warning = constrained_tasks.advice(config)
  if warning and multihost.first():
    print(warning, file=sys.stderr)
  pair = load(config, pair, task, entries)

  used = settings(config, pair, task)
  workdir = store.open_workdir(WORKDIR.value, used, _FREE, timed=True,
                               compiled=config.compilation_cache)
  records = constrained_cells.measure(config, pair, task, entries,
                                      workdir / store.RESULTS)
  if not multihost.first():
    return
  constrained_tables.write(workdir, records, config, provenance.markdown(used))
  print(constrained_tables.terminal(records))
  costs = task_rewards.host_costs(task.judge)
  if costs:
    print(costs)
  print(f"{workdir}: summary.md, {store.RESULTS}, {store.RUN}")


def load(config, pair, task, entries):
  """Checks all methods on the prompts, and loads the parameters."""
  prompt_length = max(map(len, task.prompts))
  for entry in entries:
    model_pair.check(entry.method, pair, prompt_length, config.max_new_tokens,
                     entry.sampling, task.judge.reward)
  pair = mesh.load(pair, [
      each for entry in (constrained_cells.GREEDY, *entries)
      for each in launch.decoders([entry.method], [entry.sampling.temperature])
  ], config.batch, min(config.batch, config.examples), prompt_length,
                   config.max_new_tokens)
  if config.reward_on_host and pair.mesh is not None:
    raise launch.UserError("--config.reward_on_host=True needs a single device,"
                           f" and the mesh is {mesh_shapes.text(pair.mesh)}.")
  return shared_prefix.apply(pair, task.prompts)


def settings(config, pair, task) -> dict:
  """Returns all that results depend on, as JSON values."""
  return {**json.loads(config.to_json()),
          **model_pair.settings(pair, task.judge.params,
                                task.judge.host_params),
          # A digest, which shows changes of the task's files.
          "used_examples": constrained_tasks.fingerprint(task)}


if __name__ == "__main__":
  CONFIG = launch.define_config("cdsl", "cdsl:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/cdsl", "Folder of results.")
  launch.run(main)
