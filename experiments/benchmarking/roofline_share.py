"""Computes the share of a run's time that this device needs at least.

The forwards of a run are known: of the prompt, of drafts, of scoring. Each has
its bound (`experiments.timing.roofline`); their sum is the run's.
"""

import dataclasses
import functools

from decoding_jax.speculation import tree
from experiments.benchmarking import entries
from experiments.devices import draft_levels
from experiments.harness import store
from experiments.timing import roofline
from models import checkpoints
from models import transformer
from models.transformer import quantization

FILE = "roofline.json"


def measured(workdir, dtypes, again):
  """Returns the `roofline.Roofline` of this device, the best of all starts.

  The folder of results keeps it; `again` measures even if it has one.
  """
  path = workdir / FILE
  old = store.load(path)
  if again or set(dtypes) - set(old.get("flops", ())):
    new = roofline.measure(dtypes)
    flops = old.get("flops", {})
    old = {"bandwidth": max(new.bandwidth, old.get("bandwidth", 0)),
           "flops": flops | {dtype: max(value, flops.get(dtype, 0))
                             for dtype, value in new.flops.items()}}
    store.save(path, old)
  return roofline.Roofline(**old)


def from_runs(roof, config, pair, methods):
  """Returns `record -> lower bound on its seconds`, None for 4-bit weights.

  A record's own `bandwidth` replaces the roofline's.
  """
  def bound(record):
    entry = entries.of_record(record)
    kinds = _formats(pair, entry)
    if kinds is None:
      return None
    models = [_sizes(*program) for program in zip(
        (pair.target, pair.draft), pair.dtypes(entry.dtype), kinds)]
    if entry.tool == entries.OURS:
      program = methods[entry.name]
      program = program.sampled if entry.temperature else program.greedy
      scored = 1 + tree.num_nodes(program.drafter.layout)
      # What a head reads besides its target is left out of the bound.
      drafted = () if pair.head else (
          1, *draft_levels.widths(program.drafter))[:-1]
    else:
      scored, drafted = _their_step(entry.name)
    prompt, new = config.prompt_length, config.max_new_tokens
    now = roof._replace(bandwidth=record.get("bandwidth", roof.bandwidth))

    def seconds(model, fresh, live):
      return roofline.step_seconds(now, model, entry.batch, fresh, live)

    used = models if drafted else models[:1]
    return sum(seconds(model, prompt, 0) for model in used) + (
        record["steps"] * (
            seconds(models[0], scored, prompt + new / 2) +
            sum(seconds(models[1], fresh, prompt + new / 2)
                for fresh in drafted)))

  return bound


def _formats(pair, entry):
  """Returns formats of both models' matrices; None for 4 bits."""
  if entry.tool == entries.OURS and entry.dtype != "int4":
    return pair.weights(entry.dtype)
  return {"int4": None, "int8": (quantization.INT8,) * 2}.get(
      entry.dtype, (quantization.DTYPE,) * 2)


def _their_step(name):
  """Returns tokens that a step of another tool scores, and of its drafts."""
  method, _, sizes = name.rstrip(")").partition("(")
  length = int(sizes.partition(",")[0] or 0)
  drafts = method in ("assisted", "probabilistic")
  return 1 + length, (1,) * length if drafts else ()


@functools.lru_cache(maxsize=None)
def _sizes(folder, dtype, weights):
  config = dataclasses.replace(checkpoints.architecture(folder), dtype=dtype,
                               weights=weights)
  return roofline.sizes(config, transformer.abstract_params(config))
