"""Tokens a second with and without a grammar, and how many texts are valid."""

import functools
import json

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import text_tables
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.harness import cells
from experiments.timing import stopwatch
from models.text import tokenizers

_PROMPT = "x = "
_TITLES = {"texts": "texts", "ended": "ended", "valid": "valid %",
           "rate": "tokens/s", "per_call": "tokens a call",
           "host": "host ms a step"}
_SPECS = {"texts": ".0f", "ended": ".0f", "valid": ".0f", "rate": ".0f"}


def measure(config, tasks, path) -> list[dict]:
  """Measures methods with each grammar on all `schema_tasks`."""
  with launch.user_errors(OSError, ValueError):
    folders = [launch.model_folder(x) for x in (config.target, config.draft)]
    pair = model_pair.with_params(model_pair.open_pair(*folders))
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  methods = [dj.methods.autoregressive(), dj.methods.speculative(3),
             dj.methods.rsd_s(2, 3)]

  def record(method, grammar, *_):
    runs = [_run(config, pair, pieces, method, _GRAMMARS[grammar], task)
            for task in tasks]
    return {key: sum(x[key] for x in runs) for key in runs[0]}

  return cells.run([
      cells.Cell({"method": method.name, "grammar": grammar},
                 functools.partial(record, method, grammar),
                 (method.name, grammar))
      for method in methods for grammar in _GRAMMARS], path)


def table(records):
  """Returns the lines of a table of methods and grammars."""
  return text_tables.pivot(
      [long for x in records for long in text_tables.long_records({
          "texts": x["texts"], "ended": x["ended"],
          "valid": 100 * x["valid"] / max(x["ended"], 1),
          "rate": x["tokens"] / x["seconds"],
          "per_call": x["tokens"] / x["calls"],
          "host": 1e3 * x["host"] / x["steps"]},
          method=x["method"], grammar=x["grammar"])],
      {"method": "method", "grammar": "grammar"}, titles=_TITLES, specs=_SPECS)


def _run(config, pair, pieces, method, make, task):
  """Returns the counts of one schema."""
  processor, params = make(task.schema, pieces, pair.eos_id)
  if processor:
    pair = mesh.with_processors(pair, [(processor, params)])
  prompt = pair.tokenizer.encode(_PROMPT).ids
  prompts = np.tile(np.int32(prompt), (config.rows, 1))
  lengths = np.full(config.rows, len(prompt), np.int32)
  keys = jax.random.split(jax.random.key(config.seed), config.rows)
  call = lambda: mesh.generate(
      pair, keys, prompts, lengths, method=method,
      max_new_tokens=config.max_new_tokens, sampling=dj.Sampling(),
      eos_id=pair.eos_id)
  host_seconds = lambda: (
      dj.processors.host_times(params).seconds
      if isinstance(params, dj.processors.HostGrammar) else 0.0)
  call()
  before = host_seconds()
  out, seconds = stopwatch.decoded(call)
  host = host_seconds() - before
  texts = [row[len(prompt):end].tolist() for row, end in zip(
      np.asarray(out.tokens), np.asarray(out.lengths))]
  ended = [x for x in texts if x[-1] in pair.eos_id]
  return {"texts": len(texts), "ended": len(ended),
          "valid": sum(_is_json(x, pieces) for x in ended),
          "tokens": sum(map(len, texts)), "seconds": seconds,
          "calls": int(np.asarray(out.stats.target_calls).sum()),
          "steps": int(out.steps),
          "host": host}


def _is_json(tokens, pieces):
  try:
    json.loads(b"".join(pieces[token] for token in tokens[:-1]))
    return True
  except ValueError:
    return False


_GRAMMARS = {
    "none": lambda schema, pieces, eos_id: (None, None),
    "automaton": lambda *x: (dj.processors.automaton(),
                             dj.processors.json_schema(*x)),
    "llguidance": lambda *x: (dj.processors.host_grammar(),
                              dj.processors.llguidance_engine.json_schema(*x))}
