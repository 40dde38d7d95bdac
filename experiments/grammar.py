"""Compares grammar engines: schemas that pass, and what they cost.

  python -m experiments.grammar --config=configs/grammar.py

No model is needed, but a tokenizer.
"""

import importlib.util
import json

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.app import preemption
from experiments.app import text_tables
from experiments.benchmarking import grammar_engines
from experiments.data import schema_tasks
from experiments.harness import store
from models.text import tokenizers


def main():
  config = launch.config(CONFIG, "schemas", "engines", "seconds")
  check(config)
  preemption.listen()
  tasks = _tasks(config)
  workdir = store.open_workdir(
      WORKDIR.value, json.loads(config.to_json()), ("engines", "limit"),
      timed=True)
  path = workdir / store.RESULTS
  print(text_tables.plain_table(table(compare(config, tasks, path))))
  print(f"{workdir}: {store.RESULTS}, {store.RUN}")


def check(config):
  """Raises `UserError` for fields that cannot be."""
  for name in config.engines:
    if name not in grammar_engines.ENGINES:
      raise launch.UserError(
          f"--config.engines has {name!r}: "
          f"{', '.join(grammar_engines.ENGINES)} are allowed.")


def compare(config, tasks, path) -> list[dict]:
  """Measures all schemas with each engine that is installed."""
  folder = launch.model_folder(config.tokenizer)
  tokenizer = tokenizers.load(folder)
  ends = tokenizers.eos_ids(tokenizer, folder)
  if not ends:
    raise launch.UserError(f"--config.tokenizer={config.tokenizer}: it has no "
                           "token that ends a text.")
  names = []
  for name in config.engines:
    package = "llguidance" if name == "either" else name
    if name == "automaton" or importlib.util.find_spec(package):
      names.append(name)
    else:
      print(f"{name}: not installed.")
  return grammar_engines.measure(names, tasks, tokenizer, ends[0],
                                 config.seconds, path)


def table(records):
  """Returns the lines of a table of engines."""
  lines = [["engine", "schemas", "compile", "pass", "pass %", "valid rejected",
            "invalid accepted", "in schemas", "compile s", "p95", "us a mask",
            "p95"]]
  for (name,), some in text_tables.grouped(records, "engine").items():
    compiled = text_tables.select(some, refused="")
    passing = sum(map(grammar_engines.passes, some))
    seconds = [x["seconds"] for x in compiled] or [0]
    masks = [1e6 * x["mask_seconds"] / x["masks"] for x in compiled
             if x["masks"]] or [0]
    lines.append([
        name, str(len(some)), str(len(compiled)), str(passing),
        f"{100 * passing / len(some):.1f}",
        str(sum(x["rejected"] for x in compiled)),
        str(sum(x["accepted"] for x in compiled)),
        str(sum(x["accepted"] > 0 for x in compiled)),
        f"{np.median(seconds):.3f}", f"{np.percentile(seconds, 95):.2f}",
        f"{np.median(masks):.1f}", f"{np.percentile(masks, 95):.0f}"])
  return lines


def _tasks(config):
  if not config.schemas:
    return schema_tasks.shipped()
  with launch.user_errors(OSError, ValueError):
    tasks = schema_tasks.read(config.schemas, config.limit)
  if not tasks:
    raise launch.UserError(f"--config.schemas={config.schemas}: it is empty.")
  return tasks


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("grammar", "grammar")
  WORKDIR = flags.DEFINE_string("workdir", "runs/grammar", "Folder of results.")
  launch.run(main)
