"""Compares grammar engines: schemas that pass, and what they cost.

  python -m experiments.grammar --config=configs/grammar.py

No model is needed, but a tokenizer. With `--config=configs/grammar.py:speed`
the shipped pair decodes by the schemas that come along.
"""

import collections
import functools
import importlib.util
import json
import pathlib

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.app import text_tables
from experiments.benchmarking import grammar_engines
from experiments.benchmarking import grammar_speed
from experiments.data import schema_tasks
from models.text import tokenizers

_ENGINES = ("automaton", "either", "llguidance", "xgrammar")
# Features of failing schemas that are shown.
_SHOWN = 12


def main():
  config = launch.config(CONFIG, "schemas", "engines", "seconds")
  check(config)
  tasks = _tasks(config)
  if config.target:
    print(text_tables.plain_table(grammar_speed.table(config, tasks)))
    return
  if WORKDIR.value:
    _make_folder(WORKDIR.value)  # Before the time is spent.
  results = compare(config, tasks)
  print(text_tables.plain_table(table(results, tasks)))
  print()
  print(text_tables.plain_table(failures(results, tasks)))
  if WORKDIR.value:
    _write(WORKDIR.value, results, tasks)


def check(config):
  """Raises `UserError` for fields that cannot be."""
  launch.check_positive(config, "rows", "max_new_tokens")
  for name in config.engines:
    if name not in _ENGINES:
      raise launch.UserError(f"--config.engines has {name!r}: "
                             f"{', '.join(_ENGINES)} are allowed.")


def compare(config, tasks) -> dict:
  """Returns of each engine that is installed the results of all schemas."""
  folder = launch.model_folder(config.tokenizer)
  tokenizer = tokenizers.load(folder)
  pieces = tokenizers.pieces(tokenizer)
  ends = tokenizers.eos_ids(tokenizer, folder)
  if not ends:
    raise launch.UserError(f"--config.tokenizer={config.tokenizer}: it has no "
                           "token that ends a text.")
  results = {}
  for name in config.engines:
    engine = getattr(grammar_engines, name)
    if name in ("automaton", "either"):
      engine = functools.partial(engine, seconds=config.seconds)
    package = "llguidance" if name == "either" else name
    if name != "automaton" and importlib.util.find_spec(package) is None:
      print(f"{name}: not installed.")
      continue
    results[name] = [grammar_engines.run(engine, task, tokenizer, pieces,
                                         ends[0]) for task in tasks]
  return results


def table(results, tasks):
  """Returns the lines of a table of engines."""
  lines = [["engine", "schemas", "compile", "pass", "pass %", "valid rejected",
            "invalid accepted", "in schemas", "compile s", "p95", "us a mask",
            "p95"]]
  for name, found in results.items():
    compiled = [x for x in found if not x.error]
    passing = sum(x.passes for x in found)
    seconds = [x.seconds for x in compiled] or [0]
    masks = [1e6 * x.mask_seconds / x.masks for x in compiled if x.masks] or [0]
    lines.append([
        name, str(len(tasks)), str(len(compiled)), str(passing),
        f"{100 * passing / len(tasks):.1f}",
        str(sum(x.rejected for x in compiled)),
        str(sum(x.accepted for x in compiled)),
        str(sum(x.accepted > 0 for x in compiled)),
        f"{np.median(seconds):.3f}", f"{np.percentile(seconds, 95):.2f}",
        f"{np.median(masks):.1f}", f"{np.percentile(masks, 95):.0f}"])
  return lines


def failures(results, tasks):
  """Returns the lines of a table of features: schemas with it that fail."""
  times = collections.Counter(x for task in tasks for x in task.features)
  counts = {name: collections.Counter(
      x for task, result in zip(tasks, found) if not result.passes
      for x in task.features) for name, found in results.items()}
  first = next(iter(counts.values()), collections.Counter())
  return [["schemas that fail, by keyword", "schemas", *counts]] + [
      [x, str(times[x]), *(str(counts[name][x]) for name in counts)]
      for x, _ in first.most_common(_SHOWN)]


def _tasks(config):
  if not config.schemas:
    return schema_tasks.shipped()
  with launch.user_errors(OSError, ValueError):
    tasks = schema_tasks.read(config.schemas, config.limit)
  if not tasks:
    raise launch.UserError(f"--config.schemas={config.schemas}: it is empty.")
  return tasks


def _make_folder(workdir):
  try:
    pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise launch.UserError(f"--workdir={workdir} cannot be used: {e.strerror}."
                           ) from e


def _write(workdir, results, tasks):
  lines = [json.dumps({"name": task.name, "engine": name, **result._asdict()})
           for name, found in results.items()
           for task, result in zip(tasks, found)]
  path = pathlib.Path(workdir) / "results.jsonl"
  path.write_text("\n".join(lines) + "\n", "utf-8")


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("grammar", "grammar:speed")
  WORKDIR = flags.DEFINE_string(
      "workdir", "", "Folder for results.jsonl, a line of JSON for each schema "
      "and engine; none if empty.")
  launch.run(main)
