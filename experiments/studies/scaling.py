"""Measures acceptance against size of a drafter and tokens of its training.

  python -m experiments.studies.scaling --config=configs/train.py:scaling

Each of four drafters is distilled from the target on each of four numbers of
tokens, then decodes with it. Yan et al. 2025, "Scaling Laws for Speculative
Decoding" (arXiv 2505.07858): acceptance is linear in the logarithm of the
tokens that a drafter was trained on (theorem 1.1) and in that of its capacity
(theorem 1.2); both are fitted together by least squares. Each training is one
of its own, whose learning rate falls to 0: a checkpoint of a longer one accepts
less than its tokens allow (Hoffmann et al. 2022, arXiv 2203.15556, section
3.1).

A run that was killed goes on after the last drafter that it measured. 13
minutes on two cores of an Intel Xeon; results: docs/results/scaling.md.
"""

import functools
import json
import pathlib

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import preemption
from experiments.app import text_tables
from experiments.harness import cells
from experiments.harness import store
from experiments.scoring import intervals
from experiments.training import run as training_run
from experiments.training import steps as training_steps
from models import transformer

# Width and layers of drafters, tokens of their trainings, and the share of the
# steps in which the learning rate rises.
_DRAFTERS = ((32, 1), (64, 1), (96, 2), (128, 3))
_TOKENS = (65_536, 131_072, 262_144, 524_288)
_WARMUP = 0.1
# Of the texts that drafters decode with the target.
_PROMPTS, _PROMPT_LENGTH, _NEW = 96, 32, 48
_PER_CALL = "tokens a call"


def main():
  config = launch.config(CONFIG)
  preemption.listen()
  workdir = pathlib.Path(WORKDIR.value)
  # All drafters come before more tokens.
  points = {(drafter, tokens): training(config, drafter, tokens, workdir)
            for tokens in _TOKENS for drafter in _DRAFTERS}
  with launch.user_errors(OSError, ValueError):
    for point in points.values():
      training_run.check(point)
    run = training_run.prepare(next(iter(points.values())))
  store.open_workdir(workdir, json.loads(config.to_json()), compiled=True)
  records = cells.run([
      cells.Cell({"drafter": f"{dim} x {layers}", "tokens": tokens},
                 functools.partial(measure, point, run), point.export)
      for ((dim, layers), tokens), point in points.items()],
                      workdir / store.RESULTS, unit="drafter")
  print(text_tables.render(tables(records), text_tables.terminal))


def training(config, drafter, tokens, workdir):
  """Returns the training of a drafter on a number of tokens."""
  (dim, layers), steps = drafter, tokens // config.batch_tokens
  point = config.copy_and_resolve_references()
  point.update(
      preset="", steps=steps, warmup_steps=int(_WARMUP * steps), sizes={
          "dim": dim, "num_layers": layers, "num_heads": max(dim // 32, 1),
          "hidden_dim": 2 * dim},
      workdir=str(workdir), export=str(workdir / f"{dim}x{layers}-{tokens}"))
  return point


def measure(point, run, *_) -> dict:
  """Trains a drafter, and decodes held-out prompts with it."""
  run = run._replace(architecture=training_run.architecture(point))
  state = training_run.first_state(point, run)
  update = training_run.updates(point, run)
  for step in range(point.steps):
    state, _ = update(step, state, run.data.train(step, None))
    preemption.check()
  params = training_steps.rounded(state.params, point.export_dtype)
  shapes = transformer.abstract_params(run.architecture)
  prompts = run.data.held_out(_PROMPTS).tokens[:, :_PROMPT_LENGTH]
  out = dj.generate(
      jax.random.key(point.seed), prompts,
      np.full(len(prompts), prompts.shape[1], np.int32),
      method=dj.methods.speculative(4), target=run.teacher,
      target_params=run.teacher_params, draft_params=params,
      draft=transformer.language_model(run.architecture), max_new_tokens=_NEW)
  return {
      # Without the table of embeddings.
      "parameters": transformer.num_params(shapes) - (
          run.architecture.vocab_size * run.architecture.dim),
      **training_run.evaluator(run)(params, point.eval_windows),
      _PER_CALL: intervals.json_values(intervals.interval(
          out.stats.emitted, out.stats.target_calls, point.seed))}


def fit(records, values):
  """Returns a constant, slopes of log10 of parameters and tokens, and R^2."""
  columns = np.stack([np.ones(len(records)), *(
      np.log10([r[x] for r in records]) for x in ("parameters", "tokens"))], 1)
  constants = np.linalg.lstsq(columns, values, rcond=None)[0]
  return *constants, 1 - np.var(values - columns @ constants) / np.var(values)


def tables(records) -> list:
  """Returns a table of each figure, drafters by tokens, and its fit."""
  blocks = []
  for name in ("overlap", _PER_CALL):
    long = [x for r in records for x in text_tables.long_records(
        {name: r[name]}, drafter=f"{r['parameters']:,}", tokens=r["tokens"])]
    constants = fit(records, np.array([x["value"] for x in long]))
    blocks += [("", text_tables.pivot(
        long, {"drafter": f"{name}, parameters"}, "tokens",
        form=text_tables.plus_minus)),
               "{:+.3f}, {:+.3f} log10 parameters, {:+.3f} log10 tokens, R^2 "
               "{:.3f}".format(*constants)]
  return blocks


if __name__ == "__main__":
  CONFIG = launch.define_config("train:scaling", "train:scaling")
  WORKDIR = flags.DEFINE_string("workdir", "runs/scaling",
                                "Folder of results.")
  launch.run(main)
