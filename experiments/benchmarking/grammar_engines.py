"""Grammar engines side by side: what a schema compiles to, and what it takes.

Each engine is a function `(schema, pieces, eos_id, seconds) -> steps`, which
raises ValueError for a schema that it refuses. `steps` is a function `(tokens)
-> (whether the engine allows all of them and the end after them, masks that
were asked for, seconds that these took)`.
"""

import functools
import json
import time

import numpy as np

import decoding_jax as dj
from experiments.harness import cells
from models.text import tokenizers

# Bits of a word of a mask.
_WORD = 32


def measure(names, tasks, tokenizer, eos_id, seconds, path) -> list[dict]:
  """Measures each of `schema_tasks.SchemaTask` with engines of these names.

  Automata are compiled for `seconds` at most.
  """
  pieces = tokenizers.pieces(tokenizer)

  def record(engine, task, *_):
    compiling = functools.partial(ENGINES[engine], seconds=seconds)
    return run(compiling, task, tokenizer, pieces, eos_id)

  return cells.run([
      cells.Cell({"engine": name, "name": task.name},
                 functools.partial(record, name, task), (name, task.name))
      for name in names for task in tasks], path, unit="schema")


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


def _llguidance(schema, pieces, eos_id, seconds):
  del seconds
  module = dj.processors.llguidance_engine
  return _host(module, module.source_of_schema(schema), pieces, eos_id)


def _xgrammar(schema, pieces, eos_id, seconds):
  del seconds
  module = dj.processors.xgrammar_engine
  return _host(module, module.maker_of_schema(schema), pieces, eos_id)


def _either(*arguments, **more):
  """Our automaton, or else llguidance, as `--grammar_engine=auto` chooses."""
  try:
    return _automaton(*arguments, **more)
  except ValueError:
    return _llguidance(*arguments, **more)


ENGINES = {"automaton": _automaton, "either": _either,
           "llguidance": _llguidance, "xgrammar": _xgrammar}


def _host(module, source, pieces, eos_id):
  engine = module.engine("schema", source, pieces, (eos_id,))

  def advance(matcher, token):
    engine.consume(matcher, token)
    return matcher

  return lambda tokens: _follow(engine.start(), advance, engine.mask, eos_id,
                                tokens)


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
