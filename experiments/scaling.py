"""Measures acceptance against size of a drafter and tokens of its training.

  python -m experiments.scaling --config=configs/scaling.py
  python -m experiments.scaling --config=configs/scaling.py:smoke

Each drafter is distilled from the target on each number of tokens, then decodes
with it. Laws that are linear in logarithms are fitted to what is measured
(arXiv 2505.07858).

A run that was killed goes on after the last drafter that it measured; more
drafters, and more tokens, may be added to a run.
"""

import json
import math
import pathlib

from absl import flags
import jax
import numpy as np
import tqdm

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import preemption
from experiments.evaluation import provenance
from experiments.evaluation import results_store
from experiments.evaluation import scaling_laws
from experiments.training import run as training_run
from experiments.training import steps as training_steps
from models import transformer

# These choose drafters; one does not depend on the others.
_FREE = ("drafters", "tokens", "compilation_cache")


def main():
  config = launch.config(CONFIG, "drafters", "training")
  preemption.listen()
  workdir = pathlib.Path(WORKDIR.value)
  method = check(config)
  with launch.user_errors(OSError, ValueError):
    points = {place: of_point(config, *place, workdir)
              for place in places(config)}
    for point in points.values():
      training_run.check(point)
    first = next(iter(points.values()))
    run = training_run.prepare(first)
  settings = {**json.loads(config.to_json()), "target": config.training.teacher,
              "used_files": training_run.fingerprint(first, run)}
  results_store.open_workdir(workdir, settings, _FREE,
                             compiled=config.compilation_cache)
  records = measure(config, method, points, run,
                    workdir / results_store.RESULTS)
  scaling_laws.write(workdir, records, provenance.markdown(settings))
  print(f"{scaling_laws.terminal(records)}\n\n{workdir}: summary.md, "
        f"{results_store.RESULTS}, {results_store.RUN}, *.png, *.pdf, and the "
        "drafters")


def check(config) -> dj.Method:
  """Returns the method of a config.

  Raises:
    launch.UserError: for settings that describe no study.
  """
  launch.check_positive(config, "prompts", "prompt_length", "max_new_tokens")
  for name in ("drafters", "tokens", "temperatures"):
    if not config[name]:
      raise launch.UserError(f"--config.{name} is empty: one is needed.")
  if not 0 <= config.warmup < 1:
    raise launch.UserError(f"--config.warmup={config.warmup}: at least 0 and "
                           "less than 1 is allowed.")
  least = 2 * config.training.batch_tokens
  for tokens in config.tokens:
    if tokens < least:
      raise launch.UserError(f"--config.tokens={tokens}: at least {least}, two "
                             "steps, are needed.")
  return method_specs.read(config.method, "--config.method")


def places(config) -> list[tuple[str, int]]:
  """Returns drafters and tokens; all drafters come before more tokens."""
  return [(name, tokens) for tokens in sorted(config.tokens)
          for name in config.drafters]


def of_point(config, name, tokens, workdir):
  """Returns the training of a drafter on so many tokens.

  Args:
    config: see `configs/scaling.py`.
    name: of the drafter.
    tokens: to train on.
    workdir: folder of the study.

  Returns:
    A ConfigDict as in `configs/train.py`.
  """
  found = config.training.copy_and_resolve_references()
  steps = tokens // found.batch_tokens
  found.update(
      preset="", sizes=config.drafters[name], steps=steps,
      warmup_steps=int(config.warmup * steps), workdir=str(workdir),
      export=str(workdir / "drafters" / f"{name}-{tokens}"))
  return found


def measure(config, method, points, run, path) -> list[dict]:
  """Trains and measures the drafters that have no result yet.

  Args:
    config: see `configs/scaling.py`.
    method: that decodes with them.
    points: dict from `places` to their trainings, of `of_point`.
    run: of `training_run.prepare`; its data and target are those of all points.
    path: where results are read from and appended to.

  Returns:
    A record of each point, in order.
  """
  done = {_key(r["sizes"], r["tokens"]): r for r in results_store.read(
      path, "sizes", "tokens", "overlap", "decoded")}
  sizes = {place: json.loads(point.sizes.to_json())
           for place, point in points.items()}
  keys = {place: _key(sizes[place], place[1]) for place in points}
  left = [place for place in points if keys[place] not in done]
  written = training_run.teacher_samples(next(iter(points.values())), run)
  with tqdm.tqdm(total=sum(tokens for _, tokens in left), unit="token",
                 unit_scale=True, dynamic_ncols=True) as bar:
    for place in left:
      (name, tokens), point = place, points[place]
      bar.set_description(f"{name}, {tokens} tokens")
      own = run._replace(architecture=training_run.architecture(point))
      params = training_steps.rounded(train(point, own, written, bar),
                                      point.export_dtype)
      record = {
          "drafter": name, "tokens": tokens, "sizes": sizes[place],
          "parameters": num_params(own.architecture),
          **training_run.evaluator(own)(params, point.eval_windows),
          "decoded": [decode(config, method, own, params, temperature)
                      for temperature in config.temperatures]}
      training_run.export(point, own, params, record)
      results_store.append(path, record)
      done[keys[place]] = record
      bar.set_postfix(overlap=f"{record['overlap']:.3f}")
  return [done[key] for key in keys.values()]


def _key(sizes, tokens):
  """Tells drafters apart by their sizes, whatever they are called."""
  return json.dumps(sizes, sort_keys=True), tokens


def num_params(architecture) -> int:
  """Returns the parameters of a model without its table of embeddings."""
  return transformer.num_params(transformer.abstract_params(architecture)) - (
      architecture.vocab_size * architecture.dim)


def train(config, run, written, bar):
  """Trains a drafter.

  Args:
    config: of `of_point`.
    run: with the architecture of the drafter.
    written: of `training_run.teacher_samples`.
    bar: a progress bar, which counts tokens.

  Returns:
    Its parameters.

  Raises:
    launch.UserError: if the loss is not finite.
  """
  state = training_run.first_state(config, run)
  update, loss = training_run.updates(config, run), 0.0
  for step in range(config.steps):
    state, loss = update(step, state, run.data.train(step, written))
    preemption.check()
    # Reading the loss waits for the device, so that the bar is true.
    if step % config.log_every == 0 and not math.isfinite(float(loss)):
      raise launch.UserError(
          f"{config.export}: at step {step} the loss is {loss}; a lower "
          "--config.training.learning_rate may help.")
    bar.update(config.batch_tokens)
  return state.params


def decode(config, method, run, params, temperature) -> dict:
  """Decodes held-out prompts with a drafter.

  Args:
    config: see `configs/scaling.py`.
    method: a `dj.Method`.
    run: with the architecture of the drafter, and its target.
    params: of the drafter.
    temperature: of both models.

  Returns:
    Temperature, and `emitted` and `target_calls` of each prompt.
  """
  prompts = run.data.held_out(config.prompts).tokens[:, :config.prompt_length]
  out = dj.generate(
      jax.random.key(config.training.seed), prompts,
      np.full(len(prompts), prompts.shape[1], np.int32), method=method,
      target=run.teacher, target_params=run.teacher_params,
      draft=transformer.language_model(run.architecture), draft_params=params,
      max_new_tokens=config.max_new_tokens, sampling=dj.Sampling(temperature))
  return {"temperature": temperature,
          "emitted": np.asarray(out.stats.emitted).tolist(),
          "target_calls": np.asarray(out.stats.target_calls).tolist()}


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("scaling", "scaling:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/scaling",
                                "Folder of results.")
  launch.run(main)
