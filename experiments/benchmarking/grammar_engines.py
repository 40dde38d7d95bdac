"""Grammar engines side by side: what a schema compiles to, and what it takes.

Each engine is a function `(schema, pieces, eos_id) -> steps`, which raises
ValueError for a schema that it refuses. `steps` is a function `(tokens) ->
(whether the engine allows all of them and the end after them, masks that were
asked for, seconds that these took)`.
"""

import functools
import json
import time
from typing import NamedTuple

import numpy as np

import decoding_jax as dj

# Bits of a word of a mask.
_WORD = 32


class Result(NamedTuple):
  """What an engine made of a schema and its values.

  Attributes:
    error: why it was refused; "" if it was compiled.
    seconds: it took to compile, or to refuse.
    rejected: valid values that it does not allow.
    accepted: invalid values that it allows.
    masks: that were asked for.
    mask_seconds: together.
  """
  error: str
  seconds: float
  rejected: int = 0
  accepted: int = 0
  masks: int = 0
  mask_seconds: float = 0.0

  @property
  def passes(self) -> bool:
    """Returns whether all values were told apart."""
    return not (self.error or self.rejected or self.accepted)


def run(engine, task, tokenizer, pieces, eos_id) -> Result:
  """Returns what an engine makes of a `schema_tasks.SchemaTask`."""
  begin = time.perf_counter()
  try:
    steps = engine(task.schema, pieces, eos_id)
  except ValueError as e:
    return Result(str(e) or type(e).__name__, time.perf_counter() - begin)
  seconds = time.perf_counter() - begin
  wrong, masks, mask_seconds = {True: 0, False: 0}, 0, 0.0
  for expected, values in ((True, task.valid), (False, task.invalid)):
    for value in values:
      text = json.dumps(value, ensure_ascii=False)
      allowed, count, took = steps(tokenizer.encode(
          text, add_special_tokens=False).ids)
      wrong[expected] += allowed != expected
      masks, mask_seconds = masks + count, mask_seconds + took
  return Result("", seconds, wrong[True], wrong[False], masks, mask_seconds)


def automaton(schema, pieces, eos_id, seconds=float("inf")):
  """Our automata; masks are rows of a table."""
  found = dj.processors.json_schema(schema, pieces, eos_id, seconds=seconds)

  def advance(state, token):
    return int(found.following[state, found.classes[token]])

  return functools.partial(_follow, 0, advance,
                           lambda state: found.allowed[state], eos_id)


def llguidance(schema, pieces, eos_id):
  """llguidance, as `dj.processors.llguidance_engine` asks it."""
  module = dj.processors.llguidance_engine
  return _host(module.engine("schema", module.source_of_schema(schema), pieces,
                             (eos_id,)), eos_id)


def xgrammar(schema, pieces, eos_id):
  """XGrammar, as `dj.processors.xgrammar_engine` asks it."""
  module = dj.processors.xgrammar_engine
  return _host(module.engine("schema", module.maker_of_schema(schema), pieces,
                             (eos_id,)), eos_id)


def either(schema, pieces, eos_id, seconds):
  """Our automaton, or else llguidance, as `--grammar_engine=auto` chooses."""
  try:
    return automaton(schema, pieces, eos_id, seconds)
  except ValueError:
    return llguidance(schema, pieces, eos_id)


def _host(engine, eos_id):
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
    if not _has(mask, token):
      return False, count, took
    if token != eos_id:
      state = advance(state, token)
  return True, count, took


def _has(mask, token):
  return bool(mask[token // _WORD] >> np.uint32(token % _WORD) & 1)
