"""Figures of a record of `run.run`, of all prompts or of some.

Lists of three are a figure and its 95 % bootstrap interval over prompts, or,
for rates where prompts share batches, over batches; None without interval.
"""

import numpy as np

from decoding_jax import metrics
from experiments.scoring import intervals

# Counts and seconds that records have for each prompt.
_BY_PROMPT = ("emitted", "target_calls", "draft_calls", "accepted_by_depth",
              "plain_tokens", "plain_seconds")
# What is known of prompts that shared their batches with others.
_OF_BATCHES = ("tokens", "seconds", "baseline_rate")


def of_record(record, parameter_ratio, seed=0) -> dict:
  """Computes the reported figures of a record.

  Args:
    record: of `run.run`.
    parameter_ratio: parameters of the draft over those of the target.
    seed: of the bootstrap.

  Returns:
    dict of JSON values: those of `main`, and `log_prob`. `idle_share` is
    [share] of the row-steps in which a row had finished, or only filled the
    batch. `bound_by_depth` is that of `bounds.by_depth`, and empty where it was
    not measured; `acceptance_by_rank` has no intervals.
  """
  found = {
      "log_prob": intervals.interval(record["log_prob"], record["emitted"],
                                     seed),
      "idle_share": [1 - metrics.ratio(record["target_calls"],
                                       record["row_steps"])],
      "bound_by_depth": np.array(record.get("bound_by_depth", ()), float),
      # Only trees have siblings.
      "acceptance_by_rank": metrics.acceptance_by_rank(
          [record.get("accepted_by_rank", [])],
          [record.get("tested_by_rank", [])])}
  return {**main(record, parameter_ratio, seed),
          **{k: intervals.json_values(v) for k, v in found.items()}}


def main(record, parameter_ratio, seed=0) -> dict:
  """Computes the figures that papers report.

  Args:
    record: of `run.run` or `of_prompts`.
    parameter_ratio: parameters of the draft over those of the target.
    seed: of the bootstrap.

  Returns:
    dict of JSON values: `block_efficiency`, `mbsu`, `acceptance_by_depth`, a
    list of figures; and where it was timed `token_rate` and `token_rate_ratio`,
    the speed-up over autoregressive decoding.
  """
  calls = metrics.ratio(record["draft_calls"], record["target_calls"])
  efficiency = intervals.interval(record["emitted"], record["target_calls"],
                                  seed)
  found = {"block_efficiency": efficiency,
           "mbsu": efficiency * metrics.mbsu(1, calls, parameter_ratio)}
  if "seconds" in record:
    found["token_rate"] = intervals.interval(record["tokens"],
                                             record["seconds"], seed)
  ratio = _speed_up(record, seed)
  if ratio is not None:
    found["token_rate_ratio"] = ratio
  return {**{k: intervals.json_values(v) for k, v in found.items()},
          "acceptance_by_depth": _acceptance(record["accepted_by_depth"],
                                             seed)}


def of_prompts(record, chosen) -> dict:
  """Returns what `main` needs of a record, for some prompts.

  Args:
    record: of `run.run`.
    chosen: numbers of the prompts.

  Returns:
    dict; without seconds where prompts shared their batches.
  """
  found = {name: values for name, values in record.items()
           if name not in _OF_BATCHES}
  found.update((name, [record[name][i] for i in chosen])
               for name in _BY_PROMPT if name in record)
  if "prompt_seconds" in record:
    found.update(tokens=found["emitted"],
                 seconds=[record["prompt_seconds"][i] for i in chosen])
  return found


def _speed_up(record, seed):
  """Returns `[3]`, the rate relative to autoregressive decoding, or None."""
  if "plain_seconds" in record:
    return intervals.relative(record["tokens"], record["seconds"],
                              record["plain_tokens"], record["plain_seconds"],
                              seed)
  if "baseline_rate" not in record:
    return None
  return intervals.interval(record["tokens"], record["seconds"],
                            seed) / record["baseline_rate"]


def _acceptance(counts, seed):
  """Returns, per level, the share of target calls that accepted a token of it.

  Of the calls that accepted one of the level above.

  Args:
    counts: `[R, D + 1]`, target calls of each prompt that accepted exactly
      0, 1, ..., D drafted tokens.
    seed: of the bootstrap.
  """
  calls = np.array(counts)
  at_least = np.cumsum(calls[:, ::-1], axis=1)[:, ::-1]
  return [intervals.json_values(intervals.interval(
      at_least[:, level + 1], at_least[:, level], seed))
          for level in range(calls.shape[1] - 1)]
