"""Measures block efficiency, MBSU and token rate of every tree of a config.

  python -m experiments.rsd --config=configs/rsd.py
  python -m experiments.rsd --config=configs/rsd.py --config.task=spec_bench \\
      --config.data=question.jsonl --workdir=runs/spec_bench

A method is compiled once and then run at all temperatures. Machines are noisy
and drift: autoregressive decoding is timed again in the course of each cell,
and the cell's speed is relative to that.
"""

import functools
import json
import pathlib

from absl import flags
import tqdm

from experiments import cells
from experiments import compilations
from experiments import figures
from experiments import launch
from experiments import meshes
from experiments import plans
from experiments import processes
from experiments import report
from experiments import results
from experiments import stopping
from experiments import tasks

# These only choose cells; a cell does not depend on the others.
_FREE = ("methods", "lengths", "budgets", "temperatures", "trees",
         "compilation_cache")
# --help shows flags of a main alone, and of modules that it adopts.
flags.adopt_module_key_flags(meshes)


def main():
  config = launch.config(CONFIG, "trees")
  methods, points = plans.of_config(config)
  meshes.join(config.target, config.batch)
  stopping.listen()
  pair = launch.open_pair(config.target, config.draft, config.dtype,
                          config.draft_dtype, config.weights,
                          config.draft_weights)
  examples = tasks.load(config, pair, results.begun(WORKDIR.value))
  width = max(map(len, examples.prompts))
  for method in methods:
    for temperature in config.temperatures:
      launch.check(method, pair, width, config.max_new_tokens,
                   cells.sampling(config, temperature))
  pair = meshes.load(pair, config.target, config.draft,
                     launch.kinds(methods, config.temperatures), config.batch,
                     cells.most_rows(config.batch, config.prompts,
                                     config.queue),
                     width, config.max_new_tokens)
  settings = json.loads(config.to_json())
  # Of the tasks the one that is run; what others are does not matter.
  settings["tasks"] = settings["tasks"].get(config.task)
  settings.update(models=launch.fingerprint(pair),
                  used_prompts=tasks.fingerprint(examples))
  workdir = results.open_workdir(WORKDIR.value, settings, _FREE)
  if config.compilation_cache:
    compilations.keep(workdir / compilations.FOLDER)
  records = measure(config, pair, methods, examples, workdir / results.RESULTS)
  if not processes.first():
    return
  rows = report.rows(records, points, config.temperatures)
  report.write(workdir / "summary.md", rows, examples.note)
  figures.write(workdir, rows)
  print(report.terminal(rows, examples.note))
  print(f"{workdir}: summary.md, {results.RESULTS}, {results.RUN}, *.png")


def measure(config, pair, methods, examples, path):
  """Runs the cells that have no result yet.

  Args:
    config: see `configs/rsd.py`.
    pair: a `ModelPair`.
    methods: list of methods, the baseline first.
    examples: of `tasks.load`.
    path: where results are read from and appended to.

  Returns:
    list of records, one a cell.
  """
  records = results.read(path, "method", "temperature", "emitted", "metrics")
  done = {(r["method"], r["temperature"]) for r in records}
  todo = {}
  for method in methods:
    for temperature in dict.fromkeys(config.temperatures):
      if (method.name, temperature) not in done:
        todo.setdefault(method, []).append(temperature)
  decoders = functools.partial(cells.decoder, config, pair, examples.eos_id)
  multiple = meshes.multiple(pair.mesh)
  shapes = cells.one_of_each_shape(
      cells.make_batches(config, examples.prompts, multiple=multiple)[0])
  # Of each temperature the first texts, which are those of the baseline.
  lengths = {r["temperature"]: r["emitted"] for r in reversed(records)}
  tokenizer = pair.tokenizer if examples.metrics else None
  workers = cells.at_once(pair.mesh)
  with tqdm.tqdm(total=sum(map(len, todo.values())), unit="cell",
                 dynamic_ncols=True, disable=not processes.first()) as bar:
    bar.set_description(_warming(methods[:1]))
    seconds = cells.warm_up(methods[:1], config.temperatures, decoders, shapes,
                            workers)
    for group in cells.groups(list(todo), workers):
      bar.set_description(_warming(group))
      # A program's first call is the one that counts.
      seconds = {**cells.warm_up(group, config.temperatures, decoders,
                                 shapes, workers), **seconds}
      for method in group:
        for temperature in todo[method]:
          bar.set_description(f"{method.name} T={temperature:g}")
          batches, rows = cells.make_batches(config, examples.prompts,
                                             lengths.get(temperature),
                                             multiple)
          record = cells.run(method, decoders(method, temperature),
                             decoders(methods[0], temperature), batches, rows,
                             config.batch, tokenizer)
          record["temperature"] = temperature
          record["compile_seconds"] = seconds[method, temperature == 0]
          record["metrics"] = {
              **cells.figures(record, pair.parameter_ratio),
              **tasks.score(examples, record.get("texts"), config.seed)}
          results.append(path, record)
          records.append(record)
          lengths.setdefault(temperature, record["emitted"])
          bar.update()
  return records


def _warming(methods):
  """What a bar says while their programs are compiled, and run once."""
  return f"warming up {', '.join(m.name for m in methods)}"


# Flags are defined where they are parsed: mains have some of the same name, and
# a process may import several mains.
if __name__ == "__main__":
  CONFIG = launch.define_config(
      str(pathlib.Path(__file__).parents[1] / "configs" / "rsd.py"),
      "File of settings, or file:preset.")
  WORKDIR = flags.DEFINE_string("workdir", "runs/rsd", "Folder of results.")
  launch.run(main)
