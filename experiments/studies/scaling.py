"""Measures acceptance against size of a drafter and tokens of its training.

  python -m experiments.studies.scaling --config=configs/scaling.py
  python -m experiments.studies.scaling --config=configs/scaling.py:smoke

Each drafter is distilled from the target on each number of tokens, then decodes
with it. Yan et al. 2025, "Scaling Laws for Speculative Decoding" (arXiv
2505.07858): acceptance is linear in the logarithm of the tokens that a drafter
was trained on (theorem 1.1) and in that of its capacity (theorem 1.2). Both are
fitted by least squares, each on its own and together. Results:
docs/results/scaling.md.

A run that was killed goes on after the last drafter that it measured; more
drafters, and more tokens, may be added to a run.
"""

import json
import math
import pathlib
from typing import NamedTuple

from absl import flags
import jax
import numpy as np
import tqdm

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import preemption
from experiments.app import text_tables
from experiments.harness import provenance
from experiments.harness import store
from experiments.scoring import intervals
from experiments.training import run as training_run
from experiments.training import steps as training_steps
from models import transformer

# These choose drafters; one does not depend on the others.
_FREE = ("drafters", "tokens", "compilation_cache")
_PARAMETERS, _TOKENS = "parameters", "tokens"
_NOTE = """\
Parameters are those without the table of embeddings. Overlap: sum_x min(t, d)
on held-out text, the acceptance rate of one drafted token at temperature 1; T:
tokens a target call at a temperature, with 95 % bootstrap intervals over
prompts. Fits: constant + slope x log10, with the share of the variance that
they explain (R^2); the first is of all drafters, the others are of the largest
one alone and of the most tokens alone."""


class Fit(NamedTuple):
  """`constant + sum(slopes * log10(x))`, and its share of the variance."""
  # `slopes` say what ten times as much of a variable adds; `r2` is NaN where
  # all values are equal.
  constant: float
  slopes: tuple[float, ...]
  r2: float


def main():
  config = launch.config(CONFIG)
  preemption.listen()
  workdir = pathlib.Path(WORKDIR.value)
  method = check(config)
  # All drafters come before more tokens.
  points = {(name, tokens): of_point(config, name, tokens, workdir)
            for tokens in sorted(config.tokens) for name in config.drafters}
  with launch.user_errors(OSError, ValueError):
    for point in points.values():
      training_run.check(point)
    first = next(iter(points.values()))
    run = training_run.prepare(first)
  settings = {**json.loads(config.to_json()), "target": config.training.teacher,
              "used_files": training_run.fingerprint(first, run)}
  store.open_workdir(workdir, settings, _FREE,
                     compiled=config.compilation_cache)
  records = measure(config, method, points, run,
                    workdir / store.RESULTS)
  report = [*tables(records)]
  text_tables.write(workdir / "summary.md", [
      "# Drafters by size and training", provenance.markdown(settings), _NOTE,
      *report])
  print(text_tables.render(report, text_tables.terminal),
        f"\n\n{workdir}: summary.md, {store.RESULTS}, "
        f"{store.RUN}, and the drafters")


def check(config) -> dj.Method:
  """Returns the method of a config, or raises a `UserError`."""
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


def of_point(config, name, tokens, workdir):
  """Returns the training of a drafter on a number of tokens."""
  training = config.training.copy_and_resolve_references()
  steps = tokens // training.batch_tokens
  training.update(
      preset="", sizes=config.drafters[name], steps=steps,
      warmup_steps=int(config.warmup * steps), workdir=str(workdir),
      export=str(workdir / "drafters" / f"{name}-{tokens}"))
  return training


def measure(config, method, points, run, path) -> list[dict]:
  """Trains and measures drafters without a result; returns all records."""
  # `points` are the trainings by (drafter, tokens), `run` has data and target
  # of them all, and `path` is the file of results.
  # Drafters are known by their sizes, whatever they are called.
  key = lambda sizes, tokens: (json.dumps(sizes, sort_keys=True), tokens)
  done = {key(r["sizes"], r["tokens"]): r for r in store.read(
      path, "sizes", "tokens", "overlap", "decoded")}
  sizes = {name: json.loads(point.sizes.to_json())
           for name, point in points.items()}
  keys = {name: key(sizes[name], name[1]) for name in points}
  left = [name for name in points if keys[name] not in done]
  written = training_run.teacher_samples(next(iter(points.values())), run)
  with tqdm.tqdm(total=sum(tokens for _, tokens in left), unit="token",
                 unit_scale=True, dynamic_ncols=True) as bar:
    for name in left:
      (drafter, tokens), point = name, points[name]
      bar.set_description(f"{drafter}, {tokens} tokens")
      own = run._replace(architecture=training_run.architecture(point))
      params = training_steps.rounded(train(point, own, written, bar),
                                      point.export_dtype)
      record = {
          "drafter": drafter, "tokens": tokens, "sizes": sizes[name],
          "parameters": num_params(own.architecture),
          **training_run.evaluator(own)(params, point.eval_windows),
          "decoded": [decode(config, method, own, params, temperature)
                      for temperature in config.temperatures]}
      training_run.export(point, own, params, record)
      store.append(path, record)
      done[keys[name]] = record
      bar.set_postfix(overlap=f"{record['overlap']:.3f}")
  return [done[x] for x in keys.values()]


def num_params(architecture) -> int:
  """Returns the parameters of a model without its table of embeddings."""
  return transformer.num_params(transformer.abstract_params(architecture)) - (
      architecture.vocab_size * architecture.dim)


def train(config, run, written, bar):
  """Returns the parameters of a trained drafter; `bar` counts its tokens."""
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
  """Returns `emitted` and `target_calls` of held-out prompts."""
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


def fit(variables, values) -> Fit:
  """Fits values `[n]` to positive variables, each `[n]`."""
  # Of fewer points than there are constants, the fit is the smallest one.
  values = np.asarray(values, float)
  columns = np.stack([np.ones(len(values)), *(
      np.log10(np.asarray(x, float)) for x in variables)], axis=1)
  constants = np.linalg.lstsq(columns, values, rcond=None)[0]
  variance = ((values - values.mean())**2).sum()
  r2 = 1 - ((values - columns @ constants)**2).sum() / variance if (
      variance > 0) else np.nan
  return Fit(float(constants[0]), tuple(map(float, constants[1:])), float(r2))


def measured(records) -> list[dict]:
  """Returns long records of overlap and tokens a call, of all drafters."""
  return [long for r in records for long in text_tables.long_records(
      {"overlap": r["overlap"], **{
          f"T = {x['temperature']:g}": intervals.json_values(intervals.interval(
              x["emitted"], x["target_calls"], 0)) for x in r["decoded"]}},
      drafter=r["drafter"], parameters=r[_PARAMETERS], tokens=r[_TOKENS])]


def fits(long) -> dict[str, dict[str, Fit]]:
  """Returns figure -> variables -> fit, of `measured` records."""
  largest, most = (max(r[x] for r in long) for x in (_PARAMETERS, _TOKENS))
  of = lambda some, *names: fit([[r[x] for r in some] for x in names],
                                [r["value"] for r in some])
  return {figure: {
      "parameters and tokens": of(some, _PARAMETERS, _TOKENS),
      f"tokens, {largest:,} parameters": of(
          text_tables.select(some, parameters=largest), _TOKENS),
      f"parameters, {most:,} tokens": of(
          text_tables.select(some, tokens=most), _PARAMETERS)}
          for (figure,), some in text_tables.grouped(long, "metric").items()}


def tables(records, form=text_tables.plus_minus):
  """Yields a table of each figure, drafters by tokens, and one of the fits."""
  long = measured(records)
  titles = {x: f"{x:,} tokens" for x in sorted({r[_TOKENS] for r in long})}
  for (name,), some in text_tables.grouped(long, "metric").items():
    yield "", text_tables.pivot(
        [{**r, "size": f"{r[_PARAMETERS]:,}"}
         for r in sorted(some, key=lambda r: r[_PARAMETERS])],
        {"drafter": name, "size": _PARAMETERS}, _TOKENS, titles, form,
        {"overlap": ".3f"})
  yield "", [["figure", "of", "constant", "slopes", "R^2"], *(
      [name, of, f"{x.constant:+.3f}",
       ", ".join(f"{slope:+.3f}" for slope in x.slopes), f"{x.r2:.3f}"]
      for name, of_name in fits(long).items() for of, x in of_name.items())]


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("scaling", "scaling:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/scaling",
                                "Folder of results.")
  launch.run(main)
