"""The cells of `experiments.diffusion`: each method on examples of tasks."""

import functools

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.data import canvas_tasks
from experiments.harness import batches as batches_lib
from experiments.harness import cells
from experiments.scoring import intervals
from experiments.timing import stopwatch
from experiments.training import canvas_filter
from models.text import tokenizers

# Examples of the filter have numbers of their own.
_FILTER = 10**6


def read(spec: str) -> dj.canvas.Method:
  """Makes a method of a string such as "static(4)"."""
  def load(name):
    launch.check_known("--config.methods", [name], dj.canvas.methods.names())
    return getattr(dj.canvas.methods, name)

  return method_specs.called(load, spec, "--config.methods")


def decoder(config, model, params, method, method_params=None, **more):
  """Returns `(keys, prompts, lengths) -> Filled` of a method.

  `method_params` are Learn2PD's; `**more`, of `dj.canvas.generate`,
  replaces what the config says.
  """
  eos_id = canvas_tasks.WORDS.index(tokenizers.EOS)
  arguments = dict(
      method=method, model=model, params=params, length=canvas_tasks.CANVAS,
      block=config.block, sampling=dj.Sampling(config.temperature),
      method_params=method_params if method.needs_params else None,
      eos_id=eos_id if config.eos or method.ends_text else None)
  return functools.partial(dj.canvas.generate, **{**arguments, **more})


def make_batches(examples, size, seed):
  """Returns batches (keys, prompts, lengths) of a size, in order."""
  prompts = [canvas_tasks.prompt(*x[:3]) for x in examples]
  key, numbers = jax.random.key(seed), np.arange(len(prompts))
  return [batches_lib.batch_of(key, prompts, numbers[i:i + size],
                               len(prompts[0]))
          for i in range(0, len(prompts), size)]


def measure(config, methods, decoders, examples, path) -> list:
  """Measures what has no record yet; the baseline is the first of the methods.

  `decoders` is `(method, method_params=...) -> decoder`. The records returned
  have `metrics`.
  """
  batches = make_batches(examples, config.batch, config.seed)

  @functools.cache
  def filters():
    examples_ = canvas_tasks.draw(config.canvas_tasks, config.filter_examples,
                                  config.seed + 1, start=_FILTER)
    return canvas_filter.of_decoder(
        config, decoders(dj.canvas.methods.static(1), traced=True),
        make_batches(examples_, config.batch, config.seed))

  def decode(method):
    decoded = decoders(method, method_params=filters() if method.needs_params
                       else None)
    return lambda batch: decoded(*batch)

  warm_up = lambda method: lambda: decode(method)(batches[0])

  def record(method, *_):
    return counts(cells.timed(decode(method), decode(methods[0]), batches,
                              len(batches), stopwatch.timed), examples)

  records = cells.run(
      [cells.Cell({"method": x.name}, functools.partial(record, x), x.name,
                  warm_up(x)) for x in methods],
      path, "tokens", first={methods[0].name: warm_up(methods[0])}, shapes=1)
  return [{**x, "metrics": figures(x, records[0], config.seed)}
          for x in records]


def counts(timed, examples) -> dict:
  """Returns counts of each example and seconds of each batch, for JSON.

  `emitted` are the tokens up to the end of the text; `reference_seconds` those
  of the baseline next to a batch.
  """
  outputs = jax.device_get(timed.outputs)
  gather = lambda name: np.concatenate([getattr(x, name) for x in outputs])
  tokens = gather("tokens")
  return {
      "tasks": [example[0] for example in examples],
      "right": [bool(canvas_tasks.is_right(example, row))
                for example, row in zip(examples, tokens)],
      "tokens": tokens.tolist(),
      "emitted": [min(len(canvas_tasks.words(row)) + 1, canvas_tasks.CANVAS)
                  for row in tokens],
      "forwards": gather("forwards").tolist(),
      "steps": gather("steps").tolist(),
      "seconds": timed.seconds,
      "reference_seconds": [seconds for _, seconds in timed.references]}


def figures(record, baseline, seed) -> dict[str, list]:
  """Returns accuracy, forwards a token and rates, with 95 % intervals.

  The speed-up is over `baseline_rate`, of the baseline's record timed in
  the course of this one.
  """
  right, emitted = (np.array(record[name], float)
                    for name in ("right", "emitted"))
  forwards, rows = np.array(record["forwards"], float), len(right)
  seconds, references = (np.array(record[name]) for name in (
      "seconds", "reference_seconds"))
  # Batches are the unit: what this method writes a second over the baseline.
  starts = np.arange(0, rows, -(-rows // len(seconds)))
  per_batch = np.add.reduceat(emitted, starts)
  base = np.add.reduceat(np.array(baseline["emitted"], float), starts)
  ratio = (per_batch / seconds) / (base / references)
  pair = lambda x, y=None: intervals.json_values(
      intervals.interval(x, y, seed))
  return {
      "accuracy": pair(right),
      "forwards_per_token": pair(forwards, emitted),
      "tokens_per_second": pair(per_batch, seconds),
      "baseline_rate": [base.sum() / references.sum()],
      "speed_up": pair(ratio)}
