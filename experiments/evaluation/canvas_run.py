"""Decodes examples of canvas tasks by one method, and times it."""

import ast
import functools
import inspect

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.data import canvas_tasks
from experiments.scoring import intervals
from experiments.timing import stopwatch
from models.text import tokenizers


def read(spec: str) -> dj.canvas.Method:
  """Makes a method of a string such as "static(4)".

  Raises:
    UserError: naming the string and what is allowed.
  """
  names = dj.canvas.methods.names()
  try:
    call = ast.parse(spec.strip(), mode="eval").body
    name, values = call.func.id, [ast.literal_eval(x) for x in call.args]
    named = {x.arg: ast.literal_eval(x.value) for x in call.keywords}
    if name not in names:
      raise ValueError(f"{name!r} is not one of {', '.join(names)}")
    make = getattr(dj.canvas.methods, name)
    inspect.signature(make).bind(*values, **named)
    return make(*values, **named)
  except (AttributeError, SyntaxError, TypeError, ValueError) as e:
    raise launch.UserError(f"--config.methods: {spec!r}: {e}.") from e


def decoder(config, model, params, method, method_params=None, **more):
  """Returns `(keys, prompts, lengths[, canvases]) -> Filled` of a method.

  Args:
    config: `block`, `temperature` and `eos`.
    model: a `dj.canvas.MaskedModel`.
    params: its parameters.
    method: a `dj.canvas.Method`.
    method_params: of Learn2PD; given to methods that need them.
    **more: of `dj.canvas.generate`, instead of what is chosen here.
  """
  eos_id = canvas_tasks.WORDS.index(tokenizers.EOS)
  given = dict(
      method=method, model=model, params=params, length=canvas_tasks.CANVAS,
      block=config.block, sampling=dj.Sampling(config.temperature),
      method_params=method_params if method.needs_params else None,
      eos_id=eos_id if config.eos or method.ends_text else None)
  return functools.partial(dj.canvas.generate, **{**given, **more})


def make_batches(examples, size, seed):
  """Returns batches (keys, prompts, lengths) of a size, in order."""
  keys = jax.vmap(jax.random.fold_in, (None, 0))(
      jax.random.key(seed), np.arange(len(examples)))
  prompts = np.array([canvas_tasks.prompt(*x[:3]) for x in examples], np.int32)
  lengths = np.full(len(examples), prompts.shape[1], np.int32)
  return [(keys[i:i + size], prompts[i:i + size], lengths[i:i + size])
          for i in range(0, len(examples), size)]


def run(method, decode, baseline, batches, examples) -> dict:
  """Decodes all batches with programs that are compiled already.

  Args:
    method: its name.
    decode: of `decoder`.
    baseline: the same of the method that others are compared with.
    batches: of `make_batches`.
    examples: of `canvas_tasks.draw`.

  Returns:
    A record of JSON values: of each example `right`, `tokens` and its
    `emitted` tokens up to the end of the text, `forwards` and `steps`; of each
    batch `seconds`, and the `reference_seconds` of the baseline next to it.
  """
  found, seconds, references = [], [], []
  for batch in batches:
    references.append(stopwatch.timed(baseline, *batch)[1])
    out, time = stopwatch.timed(decode, *batch)
    found.append(jax.device_get(out))
    seconds.append(time)
  gather = lambda name: np.concatenate([getattr(x, name) for x in found])
  tokens = gather("tokens")
  return {
      "method": method,
      "tasks": [example[0] for example in examples],
      "right": [bool(canvas_tasks.is_right(example, row))
                for example, row in zip(examples, tokens)],
      "tokens": tokens.tolist(),
      "emitted": [min(len(canvas_tasks.words(row)) + 1, canvas_tasks.CANVAS)
                  for row in tokens],
      "forwards": gather("forwards").tolist(),
      "steps": gather("steps").tolist(),
      "seconds": seconds,
      "reference_seconds": references,
  }


def figures(record, baseline, seed) -> dict[str, list]:
  """Returns accuracy, forwards a token, rates, each with its 95 % interval.

  Args:
    record: of `run`.
    baseline: that of the method that others are compared with.
    seed: of the intervals.
  """
  right, emitted = (np.array(record[name], float)
                    for name in ("right", "emitted"))
  forwards, rows = np.array(record["forwards"], float), len(right)
  seconds = np.array(record["seconds"])
  # Batches are the unit: what this method writes a second over the baseline.
  starts = np.arange(0, rows, -(-rows // len(seconds)))
  per_batch = np.add.reduceat(emitted, starts)
  base = np.add.reduceat(np.array(baseline["emitted"], float), starts)
  ratio = (per_batch / seconds) / (base / np.array(record["reference_seconds"]))
  pair = lambda x, y: intervals.json_values(intervals.interval(x, y, seed))
  return {
      "accuracy": pair(right, np.ones(rows)),
      "forwards_per_token": pair(forwards, emitted),
      "tokens_per_forward": pair(emitted, forwards),
      "tokens_per_second": pair(per_batch, seconds),
      "speed_up": pair(ratio, np.ones(len(ratio))),
  }
