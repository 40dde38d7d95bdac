"""Measures block efficiency, MBSU and token rate of every tree of a config.

  python -m experiments.rsd --config=configs/rsd.py
  python -m experiments.rsd --config=configs/rsd.py --config.task=spec_bench \\
      --config.data=question.jsonl --workdir=runs/spec_bench
  python -m experiments.rsd --config=configs/rsd.py:heads --workdir=runs/heads

A method is compiled once for temperature 0 and once for all others. Machines
are noisy and drift: autoregressive decoding is timed again in the course of
each cell, and the cell's speed is relative to that.

Several drafters (`drafts`) are several runs, each in a folder of its own, and a
table of them all.
"""

import json
import pathlib

from absl import flags
import jax

from decoding_jax import programs
from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption
from experiments.benchmarking import measurement
from experiments.benchmarking import tables as benchmark_tables
from experiments.data import prompt_tasks
from experiments.devices import guides
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import start_tables
from experiments.evaluation import cells
from experiments.evaluation import drafter_tables
from experiments.evaluation import figures
from experiments.evaluation import method_grid
from experiments.evaluation import provenance
from experiments.evaluation import record_figures
from experiments.evaluation import results_store
from experiments.evaluation import run as evaluation_run
from experiments.evaluation import tree_tables
from experiments.flags import share_prefix_flag
from models import transformer

# These only choose cells; a cell does not depend on the others.
_FREE = ("methods", "lengths", "budgets", "temperatures", "trees", "drafts",
         "compilation_cache", "speed")
# Folder of token rates within the workdir.
_SPEED = "speed"
# --help shows flags of a main alone, and of modules that it adopts.
flags.adopt_module_key_flags(mesh)
flags.adopt_module_key_flags(share_prefix_flag)


def main():
  config = launch.config(CONFIG, "trees")
  method_grid.from_config(config)
  mesh.join(config.target, config.batch)
  preemption.listen()
  if any(config.drafts.values()):
    run_drafters(config, WORKDIR.value)
  else:
    run(config, WORKDIR.value)
    if config.speed and jax.process_count() == 1:
      print(f"\n{speed(config.speed, WORKDIR.value)}")


def run_drafters(config, workdir):
  """Runs all trees with each of several drafters, and compares these.

  Args:
    config: see `configs/rsd.py`, with `drafts`.
    workdir: folder; each drafter has one in it.
  """
  drafts = {name: draft for name, draft in config.drafts.items() if draft}
  for draft in drafts.values():  # One that is missing is reported at once.
    _open(config, draft)
  settings = json.loads(config.to_json())
  workdir = results_store.open_workdir(
      workdir, settings, _FREE, compiled=config.compilation_cache)
  trees = {}
  for name, draft in drafts.items():
    if multihost.first():
      print(f"drafter {name}: {draft}")
    one = config.copy_and_resolve_references()
    # All share the programs that are kept: JAX has one folder of them.
    one.update(draft=draft, compilation_cache=False)
    trees[name] = run(one, workdir / name)
    programs.clear()  # Other drafters have other programs.
  if multihost.first():
    used = {**settings, "draft": " and ".join(drafts.values())}
    compared = drafter_tables.compared(trees)
    drafter_tables.write(workdir / "summary.md", compared,
                         provenance.markdown(used))
    figures.write_drafters(workdir, compared)
    print(f"{drafter_tables.terminal(compared)}\n{workdir}: summary.md, "
          "*.png, *.pdf, and a folder of each drafter")


def run(config, workdir) -> list:
  """Runs all trees with one drafter, and reports them.

  Args:
    config: see `configs/rsd.py`.
    workdir: folder.

  Returns:
    Trees of `tree_tables.best`; none in other processes than the first.
  """
  pair = _open(config, config.draft)
  methods, points, left_out = method_grid.that_fit(
      pair, *method_grid.from_config(config))
  start_tables.check_used(pair.start, methods)
  examples = prompt_tasks.load(config, pair, results_store.started_at(workdir))
  prompt_length = max(map(len, examples.prompts))
  for method in methods:
    for temperature in config.temperatures:
      model_pair.check(method, pair, prompt_length, config.max_new_tokens,
                       evaluation_run.sampling(config, temperature))
  pair = mesh.load(pair, launch.decoders(methods, config.temperatures),
                   config.batch,
                   evaluation_run.max_rows(config.batch, config.prompts,
                                           config.queue),
                   prompt_length, config.max_new_tokens)
  pair = guides.apply(pair, config.guide, "guide")
  pair = share_prefix_flag.apply(pair, examples.prompts)
  settings = json.loads(config.to_json())
  # Results depend on the task that is run, not on the others.
  settings["tasks"] = settings["tasks"].get(config.task)
  settings.update(models=model_pair.fingerprint(pair),
                  dtypes=model_pair.types(pair),
                  mesh=mesh_shapes.text(pair.mesh), shared_tokens=pair.share,
                  used_prompts=prompt_tasks.fingerprint(examples))
  workdir = results_store.open_workdir(
      workdir, settings, _FREE, timed=True, compiled=config.compilation_cache)
  records = cells.measure(config, pair, methods, examples,
                          workdir / results_store.RESULTS)
  if not multihost.first():
    return []
  # An earlier start may have run other methods, and other temperatures.
  found = record_figures.long_records(
      [r for temperature in dict.fromkeys(config.temperatures)
       for method in methods for r in records
       if (r["method"], r["temperature"]) == (method.name, temperature)],
      examples.categories, pair.parameter_ratio)
  trees = tree_tables.best(found, points)
  note = " ".join(filter(None, [examples.note, left_out]))
  parameters = transformer.num_params(pair.target_params)
  tree_tables.write(workdir, found, trees, parameters, note, settings)
  # Rates of a pair of real size, if they follow, say more than those of this.
  print(tree_tables.terminal(found, trees, parameters, note,
                             with_rates=not config.speed))
  print(f"{workdir}: {', '.join(tree_tables.FILES)}, "
        f"{results_store.RESULTS}, {results_store.RUN}")
  return trees


def speed(config, workdir) -> str:
  """Measures token rates on a pair of real size.

  On a target as small as the shipped one, reading its parameters takes no time,
  so that its rates say nothing of a target whose forwards are bound by that.

  Args:
    config: see `configs/benchmark.py`.
    workdir: folder of the run.

  Returns:
    A table and a sentence.
  """
  programs.clear()  # The other pair's will not be called again.
  folder = pathlib.Path(workdir) / _SPEED
  rows, sizes = measurement.rates(config, folder)
  return (f"{benchmark_tables.rates(rows, sizes)}\n"
          f"{folder}: summary.md, *.png, {results_store.RESULTS}")


def _open(config, draft):
  """Opens the target with a drafter."""
  return model_pair.open_pair(config.target, draft, config.dtype,
                              config.draft_dtype, config.weights,
                              config.draft_weights)


# Flags are defined where they are parsed: programs have flags of the same name,
# and a process may import several programs.
if __name__ == "__main__":
  CONFIG = launch.define_config("rsd", "rsd:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/rsd", "Folder of results.")
  launch.run(main)
