"""Tokens a second with and without a grammar, and how many texts are valid."""

import json

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.timing import stopwatch
from models.text import tokenizers

_PROMPT = "x = "


def table(config, tasks):
  """Returns the lines of a table of methods and engines on all schemas."""
  with launch.user_errors(OSError, ValueError):
    folders = [launch.model_folder(x) for x in (config.target, config.draft)]
    pair = model_pair.with_params(model_pair.open_pair(*folders))
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  methods = [dj.methods.autoregressive(), dj.methods.speculative(3),
             dj.methods.rsd_s(2, 3)]
  lines = [["method", "grammar", "texts", "ended", "valid %", "tokens/s",
            "tokens a call", "host ms a step"]]
  for method in methods:
    for name, make in _GRAMMARS.items():
      runs = [_run(config, pair, pieces, method, make, task) for task in tasks]
      lines.append([method.name, name, *_summary(runs)])
  return lines


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
  call()
  host = isinstance(params, dj.processors.HostGrammar)
  before = dj.processors.host_times(params) if host else None
  out, seconds = stopwatch.decoded(call)
  after = dj.processors.host_times(params) if host else None
  texts = [row[len(prompt):end].tolist() for row, end in zip(
      np.asarray(out.tokens), np.asarray(out.lengths))]
  ended = [x for x in texts if x[-1] in pair.eos_id]
  return {"texts": len(texts), "ended": len(ended),
          "valid": sum(_is_json(x, pieces) for x in ended),
          "tokens": sum(map(len, texts)), "seconds": seconds,
          "calls": int(np.asarray(out.stats.target_calls).sum()),
          "steps": int(out.steps),
          "host": after.seconds - before.seconds if host else 0.0}


def _is_json(tokens, pieces):
  try:
    json.loads(b"".join(pieces[token] for token in tokens[:-1]))
    return True
  except ValueError:
    return False


def _summary(runs):
  total = {key: sum(x[key] for x in runs) for key in runs[0]}
  return [str(total["texts"]), str(total["ended"]),
          f"{100 * total['valid'] / max(total['ended'], 1):.0f}",
          f"{total['tokens'] / total['seconds']:.0f}",
          f"{total['tokens'] / total['calls']:.2f}",
          f"{1e3 * total['host'] / total['steps']:.2f}"]


_GRAMMARS = {
    "none": lambda schema, pieces, eos_id: (None, None),
    "automaton": lambda *x: (dj.processors.automaton(),
                             dj.processors.json_schema(*x)),
    "llguidance": lambda *x: (dj.processors.host_grammar(),
                              dj.processors.llguidance_engine.json_schema(*x))}
