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

import functools
import json
import pathlib

from absl import flags
import jax
import tqdm

from decoding_jax import programs
from decoding_jax.speculation import tree_decoder
from experiments.app import compilation_cache
from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption
from experiments.benchmarking import measurement
from experiments.benchmarking import tables as benchmark_tables
from experiments.data import prompt_tasks
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import start_tables
from experiments.evaluation import bounds
from experiments.evaluation import drafter_tables
from experiments.evaluation import figures
from experiments.evaluation import method_grid
from experiments.evaluation import provenance
from experiments.evaluation import record_figures
from experiments.evaluation import result_rows
from experiments.evaluation import result_tables
from experiments.evaluation import results_store
from experiments.evaluation import run as evaluation_run
from experiments.evaluation import summary_files
from experiments.evaluation import tables
from experiments.evaluation import verdicts
from experiments.scoring import intervals
from models import transformer

# These only choose cells; a cell does not depend on the others.
_FREE = ("methods", "lengths", "budgets", "temperatures", "trees", "drafts",
         "compilation_cache", "speed")
# Folder of token rates within the workdir.
_SPEED = "speed"
# --help shows flags of a main alone, and of modules that it adopts.
flags.adopt_module_key_flags(mesh)


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
  for draft in drafts.values():  # One that is missing is told at once.
    _open(config, draft)
  settings = json.loads(config.to_json())
  workdir = results_store.open_workdir(workdir, settings, _FREE)
  if config.compilation_cache:
    compilation_cache.keep(workdir / compilation_cache.FOLDER)
  rows = {}
  for name, draft in drafts.items():
    if multihost.first():
      print(f"drafter {name}: {draft}")
    one = config.copy_and_resolve_references()
    # All share the programs that are kept: JAX has one folder of them.
    one.update(draft=draft, compilation_cache=False)
    rows[name] = run(one, workdir / name)
    programs.clear()  # Other drafters have other programs.
  if multihost.first():
    used = {**settings, "draft": " and ".join(drafts.values())}
    drafter_tables.write(workdir / "summary.md", rows,
                         provenance.markdown(used))
    figures.write_drafters(workdir, rows)
    print(f"{drafter_tables.terminal(rows)}\n{workdir}: summary.md, *.png, "
          "*.pdf, and a folder of each drafter")


def run(config, workdir) -> list:
  """Runs all trees with one drafter, and reports them.

  Args:
    config: see `configs/rsd.py`.
    workdir: folder.

  Returns:
    Rows of `tables.rows`; none in other processes than the first.
  """
  pair = _open(config, config.draft)
  methods, points, left_out = method_grid.that_fit(
      pair, *method_grid.from_config(config))
  start_tables.check_used(pair.start, methods)
  examples = prompt_tasks.load(config, pair, results_store.started_at(workdir))
  width = max(map(len, examples.prompts))
  for method in methods:
    for temperature in config.temperatures:
      model_pair.check(method, pair, width, config.max_new_tokens,
                       evaluation_run.sampling(config, temperature))
  pair = mesh.load(pair, config.target, config.draft,
                   launch.decoders(methods, config.temperatures), config.batch,
                   evaluation_run.max_rows(config.batch, config.prompts,
                                           config.queue),
                   width, config.max_new_tokens)
  settings = json.loads(config.to_json())
  # Results depend on the task that is run, not on the others.
  settings["tasks"] = settings["tasks"].get(config.task)
  settings.update(models=model_pair.fingerprint(pair),
                  dtypes=model_pair.types(pair, config.target, config.draft),
                  mesh=mesh_shapes.text(pair.mesh),
                  used_prompts=prompt_tasks.fingerprint(examples))
  workdir = results_store.open_workdir(workdir, settings, _FREE, timed=True)
  if config.compilation_cache:
    compilation_cache.keep(workdir / compilation_cache.FOLDER)
  records = measure(config, pair, methods, examples,
                    workdir / results_store.RESULTS)
  if not multihost.first():
    return []
  # An earlier start may have run other methods.
  records = [r for method in methods for r in records
             if r["method"] == method.name]
  rows = tables.rows(records, points, config.temperatures)
  results = result_rows.rows(records, examples.categories, config.temperatures,
                             pair.parameter_ratio)
  speeds = [*verdicts.lines(results), verdicts.why_slow(
      results, transformer.num_params(pair.target_params))]
  note = " ".join(filter(None, [examples.note, left_out]))
  summary_files.write(workdir, rows, results, settings=settings,
                      notes=_paragraphs(note, *speeds))
  # Rates of a pair of real size, if they follow, say more than those of this.
  with_rates = not config.speed
  print(_paragraphs(tables.terminal(rows, note, with_rates),
                    result_tables.terminal(results),
                    *(speeds if with_rates else ())))
  print(f"{workdir}: {', '.join(summary_files.NAMES)}, "
        f"{results_store.RESULTS}, {results_store.RUN}")
  return rows


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


def measure(config, pair, methods, examples, path):
  """Runs the cells that have no result yet.

  Args:
    config: see `configs/rsd.py`.
    pair: a `ModelPair`.
    methods: list of methods, the baseline first.
    examples: of `prompt_tasks.load`.
    path: where results are read from and appended to.

  Returns:
    list of records, one per cell.
  """
  records = results_store.read(path, "method", "temperature", "emitted",
                               "metrics")
  done = {(r["method"], r["temperature"]) for r in records}
  todo = {}
  for method in methods:
    for temperature in dict.fromkeys(config.temperatures):
      if (method.name, temperature) not in done:
        todo.setdefault(method, []).append(temperature)
  decoders = functools.partial(evaluation_run.decoder, config, pair,
                               examples.eos_id)
  multiple = mesh_shapes.multiple(pair.mesh)
  shapes = evaluation_run.one_of_each_shape(
      evaluation_run.make_batches(config, examples.prompts,
                                  multiple=multiple)[0])
  # Lengths of the first texts of each temperature, those of the baseline.
  lengths = {r["temperature"]: r["emitted"] for r in reversed(records)}
  tokenizer = pair.tokenizer if examples.metrics else None
  workers = evaluation_run.at_once(pair.mesh)
  # Compilation and runs take turns: the mean of all cells so far tells what is
  # left, that of the last few does not.
  with tqdm.tqdm(total=sum(map(len, todo.values())), unit="cell", smoothing=0,
                 dynamic_ncols=True, disable=not multihost.first()) as bar:
    bar.set_description(_warming(methods[:1]))
    seconds = evaluation_run.warm_up(methods[:1], config.temperatures,
                                     decoders, shapes, workers)
    for i, group in enumerate(evaluation_run.groups(list(todo), workers)):
      left = [method for method in list(todo)[i * workers:]
              if method != methods[0]]
      count = evaluation_run.num_programs(left, config.temperatures, shapes)
      bar.set_description(f"{_warming(group)}: " + evaluation_run.compile_note(
          count, seconds, len(shapes), workers))
      # Later calls find a program compiled: the first seconds are kept.
      seconds = {**evaluation_run.warm_up(group, config.temperatures, decoders,
                                          shapes, workers), **seconds}
      for method in group:
        for temperature in todo[method]:
          bar.set_description(f"{method.name} T={temperature:g}")
          batches, rows = evaluation_run.make_batches(config, examples.prompts,
                                                      lengths.get(temperature),
                                                      multiple)
          record = _same(records, methods, method, temperature) or (
              evaluation_run.run(method, decoders(method, temperature),
                                 decoders(methods[0], temperature), batches,
                                 rows, config.batch, tokenizer,
                                 config.references))
          record = {**record, "method": method.name,
                    "temperature": temperature,
                    "bound_by_depth": _bounds(
                        config, pair, examples.eos_id, method, temperature,
                        batches)}
          record["compile_seconds"] = seconds[method, temperature == 0]
          record["metrics"] = {
              **record_figures.of_record(record, pair.parameter_ratio),
              **prompt_tasks.score(examples, record.get("texts"), config.seed)}
          results_store.append(path, record)
          records.append(record)
          lengths.setdefault(temperature, record["emitted"])
          bar.update()
  return records


def _same(records, methods, method, temperature):
  """Returns the record of a method that has the same program and texts.

  At temperature 0 that is one which differs in its verification alone.
  """
  decoder = functools.partial(tree_decoder.decoder_of,
                              greedy=temperature == 0)
  same = {x.name for x in methods if decoder(x) is decoder(method)}
  return next((r for r in records if r["method"] in same and
               r["temperature"] == temperature), None)


def _bounds(config, pair, eos_id, method, temperature, batches):
  """Returns the bounds of acceptance by depth; none if they are not wanted."""
  if not config.bounds or config.queue:
    return []
  return intervals.json_values(bounds.by_depth(
      pair, method, evaluation_run.sampling(config, temperature), batches,
      config.bounds, evaluation_run.draft_sampling(config),
      max_new_tokens=config.max_new_tokens, eos_id=eos_id, rows=config.batch))


def _paragraphs(*texts):
  return "\n\n".join(filter(None, texts))


def _warming(methods):
  """Describes the compilation and first run of programs, for the bar."""
  return f"warming up {', '.join(m.name for m in methods)}"


# Flags are defined where they are parsed: programs have flags of the same name,
# and a process may import several programs.
if __name__ == "__main__":
  CONFIG = launch.define_config(
      "rsd", "Settings: file, file:preset, or the name of a shipped file, "
      "such as rsd:smoke.")
  WORKDIR = flags.DEFINE_string("workdir", "runs/rsd", "Folder of results.")
  launch.run(main)
