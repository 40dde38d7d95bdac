"""Measures block efficiency, MBSU and token rate of every tree of a config.

  python -m experiments.rsd --config=configs/rsd.py

Machines are noisy and drift: autoregressive decoding is timed again in the
course of each cell, and the cell's speed is relative to that.

Several drafters (`drafts`) are several runs, each in a folder of its own, and a
table of them all. Runs of several tasks become one table and one figure by

  python -m experiments.rsd --join=runs/xsum,runs/wmt --workdir=runs/tasks
"""

import json
import pathlib

from absl import flags
import jax
import ml_collections

from decoding_jax import programs
from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption
from experiments.benchmarking import measurement
from experiments.data import prompt_tasks
from experiments.devices import guides
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.devices import shared_prefix
from experiments.devices import start_tables
from experiments.evaluation import method_grid
from experiments.evaluation import tree_cells
from experiments.evaluation import tree_figures
from experiments.evaluation import tree_tables
from experiments.harness import batches
from experiments.harness import provenance
from experiments.harness import store
from experiments.timing import profile

# These only choose cells; a cell does not depend on the others.
_FREE = ("methods", "lengths", "budgets", "temperatures", "trees", "drafts",
         "compilation_cache", "speed", "expected", "tolerance")
_JOINED = "summary.md, *.png, *.pdf"
# --help shows flags of a main alone, and of modules that it adopts.
for _module in mesh, shared_prefix, profile:
  flags.adopt_module_key_flags(_module)


def main():
  if JOIN.value:
    print(join(JOIN.value, WORKDIR.value))
    return
  config = launch.config(CONFIG)
  method_grid.from_config(config)
  mesh.join(config.target, config.batch)
  preemption.listen()
  if any(config.drafts.values()):
    run_drafters(config, WORKDIR.value)
  else:
    run(config, WORKDIR.value)
    if config.speed and jax.process_count() == 1:
      # Reading the parameters of a target as small as the shipped one takes no
      # time, so that its rates say nothing of larger ones.
      programs.clear()  # The other pair's will not be called again.
      print()
      measurement.run(config.speed, pathlib.Path(WORKDIR.value) / "speed")


def run_drafters(config, workdir):
  """Runs all trees with each of several drafters, and compares these."""
  drafts = {name: draft for name, draft in config.drafts.items() if draft}
  for draft in drafts.values():  # One that is missing is reported at once.
    model_pair.of_config(config, draft)
  settings = json.loads(config.to_json())
  workdir = store.open_workdir(workdir, settings, _FREE,
                               compiled=config.compilation_cache)
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
    settings["draft"] = " and ".join(drafts.values())
    head = provenance.markdown(settings)
    print(f"{tree_tables.write_joined(workdir, 'drafter', trees, head)}\n"
          f"{workdir}: {_JOINED}, and a folder of each drafter")


def join(folders, workdir) -> str:
  """Compares finished runs by task, or by folder where tasks repeat.

  Writes and returns their tables; runs nothing.
  """
  tasks, trees, orders = zip(*(_read(pathlib.Path(x)) for x in folders))
  column, names = "task", tasks
  if len({*tasks}) < len(tasks):
    column, names = "run", folders
  launch.check_folder("--workdir", workdir)
  workdir = pathlib.Path(workdir)
  if (workdir / store.RUN).exists():
    raise launch.UserError(f"--workdir={workdir} has a run of its own: choose "
                           "another folder for the tables of --join.")
  with launch.user_errors(OSError):
    workdir.mkdir(parents=True, exist_ok=True)
  head = [tree_tables.ORDERS_NOTE, ""]
  for folder, task, lines in zip(folders, tasks, orders):
    head += [f"- {folder}, {task}:", *(f"  - {line}" for line in lines)]
  table = tree_tables.write_joined(workdir, column, dict(zip(names, trees)),
                                   "\n".join(head))
  return f"{table}\n{workdir}: {_JOINED}"


def _read(folder):
  """Returns the task, best trees and orders of a run, as last started."""
  settings = store.load(folder / store.RUN).get("settings", {})
  records = store.read(folder / store.RESULTS, "method", "metrics", "emitted")
  if "trees" not in settings or not records:
    raise launch.UserError(f"--join: '{folder}' has no results of "
                           "experiments.rsd.")
  _, points = method_grid.from_config(ml_collections.ConfigDict(settings))
  trees = tree_tables.best(tree_figures.long_records(records, None, None),
                           points)
  return settings["task"], trees, tree_tables.orders(records, trees)


def run(config, workdir) -> list:
  """Runs all trees with one drafter, and reports them.

  Returns trees of `tree_tables.best`, none but in the first process.
  """
  pair = model_pair.of_config(config, config.draft)
  methods, points, left_out = method_grid.that_fit(
      pair, *method_grid.from_config(config))
  start_tables.check_used(pair.start, methods)
  examples = prompt_tasks.load(config, pair, store.started_at(workdir))
  pair = _load(config, pair, methods, examples.prompts)

  settings = json.loads(config.to_json())
  # Results depend on the task that is run, not on the others.
  settings["tasks"] = settings["tasks"].get(config.task)
  settings.update(model_pair.settings(pair),
                  used_prompts=prompt_tasks.fingerprint(examples))
  workdir = store.open_workdir(workdir, settings, _FREE, timed=True,
                               compiled=config.compilation_cache)
  records = tree_cells.measure(config, pair, methods, examples,
                               workdir / store.RESULTS)
  if profile.FOLDER.value:
    tree_cells.show_profiles(config, pair, methods, examples)
  if not multihost.first():
    return []

  records.sort(key=lambda r: config.temperatures.index(r["temperature"]))
  cells = tree_figures.long_records(records, examples.categories,
                                    pair.parameter_ratio)
  trees = tree_tables.best(cells, points)
  note = " ".join(filter(None, [examples.note, left_out]))
  tree_tables.write(workdir, cells, trees, note, settings,
                    tree_tables.orders(records, trees))
  print(tree_tables.terminal(cells, trees, note))
  print(f"{workdir}: {', '.join(tree_tables.FILES)}, {store.RESULTS}, "
        f"{store.RUN}")
  if config.expected:
    print(tree_tables.verdict(cells, config.expected, config.tolerance))
  return trees


def _load(config, pair, methods, prompts):
  """Checks all methods on the prompts, and loads the parameters."""
  prompt_length = max(map(len, prompts))
  for method in methods:
    for temperature in config.temperatures:
      model_pair.check(method, pair, prompt_length, config.max_new_tokens,
                       tree_cells.sampling(config, temperature))
  pair = mesh.load(pair, launch.decoders(methods, config.temperatures),
                   config.batch,
                   batches.max_rows(config.batch, config.prompts, config.queue),
                   prompt_length, config.max_new_tokens)
  return shared_prefix.apply(guides.apply(pair, config.guide, "guide"), prompts)


if __name__ == "__main__":
  CONFIG = launch.define_config("rsd", "rsd:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/rsd", "Folder of results.")
  JOIN = flags.DEFINE_list("join", [], "Folders of runs to compare, e.g. of "
                           "several tasks; nothing is run.")
  launch.run(main)
