"""Compares grammar engines: schemas that pass, and what they cost.

  python -m experiments.grammar --config=configs/grammar.py

No model is needed, but a tokenizer.

An engine is a function `(schema, pieces, eos_id, seconds) -> steps`, which
raises ValueError for a schema that it refuses. `steps` is `(tokens) -> (whether
the engine allows all of them and the end after them, masks that were asked for,
seconds that these took)`.
"""

import functools
import importlib.util
import json
import time

from absl import flags
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import preemption
from experiments.app import text_tables
from experiments.data import schema_tasks
from experiments.harness import cells
from experiments.harness import store
from models.text import tokenizers

# Bits of a word of a mask.
_WORD = 32


def main():
  config = launch.config(CONFIG)
  check(config)
  preemption.listen()
  with launch.user_errors(ValueError):
    tasks = schema_tasks.read(config.schemas or str(schema_tasks.SHIPPED),
                              config.limit)
  workdir = store.open_workdir(
      WORKDIR.value, json.loads(config.to_json()), ("engines", "limit"),
      timed=True)
  path = workdir / store.RESULTS
  print(text_tables.plain_table(table(compare(config, tasks, path))))
  print(f"{workdir}: {store.RESULTS}, {store.RUN}")


def check(config):
  """Raises `UserError` for fields that cannot be."""
  launch.check_used(config, limit="schemas")
  if not config.engines:
    raise launch.UserError("--config.engines is empty: one is needed.")
  launch.model_folder(config.tokenizer)
  launch.check_known("--config.engines", config.engines, ENGINES)


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
  pieces = tokenizers.pieces(tokenizer)

  def record(engine, task, *_):
    return run(functools.partial(ENGINES[engine], seconds=config.seconds), task,
               tokenizer, pieces, ends[0])

  return cells.run([
      cells.Cell({"engine": name, "name": task.name},
                 functools.partial(record, name, task), (name, task.name))
      for name in names for task in tasks], path, unit="schema")


def table(records):
  """Returns the lines of a table of engines."""
  lines = [["engine", "schemas", "compile", "pass", "pass %", "valid rejected",
            "invalid accepted", "in schemas", "compile s", "p95", "us a mask",
            "p95"]]
  for (name,), some in text_tables.grouped(records, "engine").items():
    compiled = text_tables.select(some, refused="")
    passing = sum(map(passes, some))
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


def run(engine, task, tokenizer, pieces, eos_id) -> dict:
  """Returns what an engine makes of a task.

  `refused` says why it did not compile, if so; `rejected` valid values and
  `accepted` invalid ones are what it gets wrong.
  """
  begin = time.perf_counter()
  refused, steps = "", None
  try:
    steps = engine(task.schema, pieces, eos_id)
  except ValueError as e:
    refused = str(e) or type(e).__name__
  record = {"refused": refused, "seconds": time.perf_counter() - begin,
            "rejected": 0, "accepted": 0, "masks": 0, "mask_seconds": 0.0}
  for valid, values in ((True, task.valid), (False, task.invalid)):
    for value in values if steps else ():
      text = json.dumps(value, ensure_ascii=False)
      allowed, count, took = steps(tokenizer.encode(
          text, add_special_tokens=False).ids)
      record["rejected" if valid else "accepted"] += allowed != valid
      record["masks"] += count
      record["mask_seconds"] += took
  return record


def passes(record) -> bool:
  """Returns whether all values were told apart."""
  return not (record["refused"] or record["rejected"] or record["accepted"])


def _automaton(schema, pieces, eos_id, seconds):
  """Our automata; masks are rows of a table."""
  tables = dj.processors.json_schema(schema, pieces, eos_id, seconds=seconds)

  def advance(state, token):
    return int(tables.following[state, tables.classes[token]])

  return functools.partial(_follow, 0, advance,
                           lambda state: tables.allowed[state], eos_id)


def _host(name, source, schema, pieces, eos_id, **_):
  """An engine on the host, whose module makes a source of a schema."""
  module = getattr(dj.processors, name)
  engine = module.engine("schema", getattr(module, source)(schema), pieces,
                         (eos_id,))

  def advance(matcher, token):
    engine.consume(matcher, token)
    return matcher

  return lambda tokens: _follow(engine.start(), advance, engine.mask, eos_id,
                                tokens)


def _either(*arguments, **more):
  """Our automaton, or else llguidance, as `--grammar_engine=auto` chooses."""
  try:
    return _automaton(*arguments, **more)
  except ValueError:
    return ENGINES["llguidance"](*arguments, **more)


ENGINES = {
    "automaton": _automaton, "either": _either,
    "llguidance": functools.partial(_host, "llguidance_engine",
                                    "source_of_schema"),
    "xgrammar": functools.partial(_host, "xgrammar_engine", "maker_of_schema")}


def _follow(state, advance, mask_of, eos_id, tokens):
  """Returns whether tokens and the end are allowed, masks, and their time."""
  count, took = 0, 0.0
  for token in [*tokens, eos_id]:
    begin = time.perf_counter()
    try:
      mask = mask_of(state)
    except ValueError:  # The engine has given up.
      return False, count, took
    took, count = took + time.perf_counter() - begin, count + 1
    if not mask[token // _WORD] >> np.uint32(token % _WORD) & 1:
      return False, count, took
    if token != eos_id:
      state = advance(state, token)
  return True, count, took


if __name__ == "__main__":
  CONFIG = launch.define_config("grammar", "grammar")
  WORKDIR = flags.DEFINE_string("workdir", "runs/grammar", "Folder of results.")
  launch.run(main)
