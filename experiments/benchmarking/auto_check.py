"""Checks the choices of `auto` in a benchmark against its measurements."""

import jax
import numpy as np

from experiments.app import method_specs
from experiments.benchmarking import runs as benchmark_runs
from experiments.benchmarking import systems
from experiments.benchmarking import tables as benchmark_tables
from experiments.evaluation import results_store
from experiments.timing import auto_method

FILE = "trials.json"


def from_config(config, pair, workdir):
  """Chooses a method for each dtype, batch and temperature.

  Choices are kept in the workdir. Returns a dict from (dtype, batch,
  temperature) to `spec`, `name`, `rate`, `predicted` (tokens a second) and
  `reason`.
  """
  if not config.auto:
    return {}
  path = workdir / FILE
  known = results_store.load(path)
  found = {}
  for dtype in config.dtypes:
    for batch in config.batches:
      for temperature in config.temperatures:
        name = f"{dtype}, batch {batch}, temperature {temperature:g}"
        if name not in known:
          known[name] = _choose(config, pair, dtype, batch, temperature)
          results_store.save(path, known)
        found[dtype, batch, temperature] = known[name]
  return found


def methods(choices):
  """Returns a dict from names to methods, of all that were chosen."""
  return {x["name"]: method_specs.read(x["spec"]) for x in choices.values()}


def remarks(choices, rows):
  """Returns a line for each choice: its reason, and the rate measured later."""
  rates = {row["entry"]: row["rate"] for row in rows}
  found = []
  for (dtype, batch, temperature), choice in choices.items():
    rate = rates.get(
        benchmark_runs.Entry(benchmark_runs.OURS, choice["name"], dtype, batch,
                             temperature))
    measured = "" if rate is None else (
        f" Measured: {rate[0]:.1f}, {rate[0] / choice['rate']:.2f} times the "
        f"trial and {rate[0] / choice['predicted']:.2f} times the prediction.")
    found.append(
        f"auto, {benchmark_tables.title(batch, temperature)}, {dtype}: "
        f"{choice['reason']}{measured}")
  return found


def _choose(config, pair, dtype, batch, temperature):
  texts = systems.prompts(config, pair)
  choice = auto_method.choose(
      systems.with_dtype(pair, dtype), texts,
      np.full(len(texts), texts.shape[1], np.int32), config.max_new_tokens,
      systems.sampling(config, temperature), batch)
  # The programs of its trials are not needed any more.
  jax.clear_caches()
  return {"name": choice.method.name, "spec": choice.spec,
          "rate": choice.rate, "predicted": choice.expected,
          "reason": choice.reason}
