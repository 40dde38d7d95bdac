"""Measures decoding of a masked-diffusion model: quality against parallelism.

  python -m experiments.diffusion --config=configs/diffusion.py
  python -m experiments.diffusion --config=configs/diffusion.py:smoke

All methods of `dj.canvas.methods` on list operations, Sudoku and Latin squares;
and FreeDave against the static decoding that it keeps.
"""

import functools
import json

from absl import flags
import jax
import numpy as np
import tqdm

import decoding_jax as dj
from experiments.app import launch
from experiments.app import preemption
from experiments.app import text_tables
from experiments.data import canvas_tasks
from experiments.devices import model_pair
from experiments.evaluation import canvas_run
from experiments.evaluation import canvas_tables
from experiments.evaluation import provenance
from experiments.evaluation import results_store
from experiments.timing import stopwatch
from experiments.training import canvas_filter
from models import checkpoints
from models.text import tokenizers

# These only choose lines; a line does not depend on the others.
_FREE = ("methods",)
# Examples of the filter have numbers of their own.
_FILTER = 10**6


def main():
  config = launch.config(CONFIG, "canvas_tasks", "filter_steps")
  _check(config)
  preemption.listen()
  methods = [canvas_run.read(spec) for spec in config.methods]
  model, params = _load(config.model)
  # Speed-ups are relative to the first method.
  settings = {**json.loads(config.to_json()), "baseline": methods[0].name,
              "models": model_pair.digest_of(params)}
  workdir = results_store.open_workdir(WORKDIR.value, settings, _FREE,
                                       timed=True, compiled=True)
  # Task by task: a batch takes as long as its slowest row.
  examples = sorted(
      canvas_tasks.draw(config.canvas_tasks, config.examples, config.seed + 1),
      key=lambda example: config.canvas_tasks.index(example[0]))
  decoders = functools.partial(canvas_run.decoder, config, model, params)
  records = measure(config, methods, decoders, examples,
                    workdir / results_store.RESULTS)
  canvas_tables.write(workdir, records, config,
                      provenance.markdown(settings))
  print(canvas_tables.text(records, config.canvas_tasks,
                           text_tables.terminal))
  print(f"{workdir}: summary.md, {results_store.RESULTS}, "
        f"{results_store.RUN}, quality.png")


def _check(config):
  launch.check_seed(config)
  launch.check_positive(config, "examples", "batch", "block", "filter_examples",
                        "filter_steps")
  if config.examples % config.batch:
    raise launch.UserError(f"--config.batch={config.batch} must divide "
                           f"--config.examples={config.examples}.")
  if canvas_tasks.CANVAS % config.block:
    raise launch.UserError(f"--config.block={config.block} must divide "
                           f"{canvas_tasks.CANVAS}, the places of a canvas.")
  if not config.methods or not config.canvas_tasks:
    raise launch.UserError("--config.methods and --config.canvas_tasks must "
                           "not be empty.")
  for name in config.canvas_tasks:
    if name not in canvas_tasks.TASKS:
      raise launch.UserError(f"--config.canvas_tasks: {name!r} is not one of "
                             f"{', '.join(canvas_tasks.TASKS)}.")


def _load(name):
  """Returns the model and its parameters; it must know the tasks' words."""
  folder = launch.model_folder(name)
  with launch.user_errors(OSError, ValueError):
    lm, params = checkpoints.load(folder)
    if tokenizers.load(folder).get_vocab() != (
        canvas_tasks.tokenizer().get_vocab()):
      raise ValueError(f"--config.model={name!r} was not trained on "
                       "--config.canvas_tasks.")
  mask = canvas_tasks.WORDS.index(canvas_tasks.MASK)
  return dj.canvas.MaskedModel(lm, mask), params


def measure(config, methods, decoders, examples, path):
  """Runs the methods that have no result yet; returns all records, in order."""
  found = {x["method"]: x for x in results_store.read(path, "method", "tokens")}
  todo = [x for x in methods if x.name not in found]
  batches = canvas_run.make_batches(examples, config.batch, config.seed)
  baseline = decoders(methods[0])
  filtered = None
  if any(x.needs_params for x in todo):
    filtered = train_filter(config, decoders)
  if todo:
    stopwatch.timed(baseline, *batches[0])
  for method in tqdm.tqdm(todo, unit="method", dynamic_ncols=True):
    decode = decoders(method, method_params=filtered)
    stopwatch.timed(decode, *batches[0])
    record = canvas_run.run(method.name, decode, baseline, batches, examples)
    results_store.append(path, record)
    found[method.name] = record
    preemption.check()
  records = [found[method.name] for method in methods]
  return [{**x, "metrics": canvas_run.figures(x, records[0], config.seed)}
          for x in records]


def train_filter(config, decoders):
  """Trains Learn2PD's filter on traces of static decoding."""
  examples = canvas_tasks.draw(config.canvas_tasks, config.filter_examples,
                               config.seed + 1, start=_FILTER)
  decode = decoders(dj.canvas.methods.static(1), traced=True)
  parts = [jax.device_get(decode(*batch))
           for batch in canvas_run.make_batches(examples, config.batch,
                                                config.seed)]
  data = [canvas_filter.traces(part, config.block) for part in parts]
  params, losses = canvas_filter.train(
      jax.random.key(config.seed),
      canvas_filter.Traces(*map(np.concatenate, zip(*data))),
      config.filter_steps)
  print(f"filter of Learn2PD: cross entropy {losses[0]:.4f} at first, "
        f"{losses[-1]:.4f} after {config.filter_steps} steps")
  return params


if __name__ == "__main__":
  CONFIG = launch.define_config("diffusion", "diffusion:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/diffusion",
                                "Folder of results.")
  launch.run(main)
