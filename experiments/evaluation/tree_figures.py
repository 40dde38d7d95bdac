"""Figures of the records of `tree_cells`, of all prompts or by category.

Lists of three are a figure and its 95 % bootstrap interval over prompts, or,
for rates where prompts share batches, over batches; None without interval.
"""

import collections
import re

import numpy as np

from decoding_jax import metrics
from decoding_jax.speculation import verifiers
from experiments.app import text_tables
from experiments.scoring import intervals

ALL = "all"
PLAIN = "autoregressive"
LABELS = {"speculative": "SD", "spectr": "SpecTr", "specinfer": "SpecInfer",
          "rsd_c": "RSD-C", "rsd_s": "RSD-S", "pearl": "PEARL",
          "opt_tree": "OPT-Tree", "token_recycling": "Token Recycling",
          "prompt_lookup": "prompt lookup", "suffix": "suffix decoding",
          "lookahead": "Lookahead", "aded": "ADED", "gsd": "GSD", "ssd": "SSD"}
# An option in the name of a method, as in suffix(8x4, paths=16).
_OPTION = re.compile(r", \w+=[^,)]*")
# Mean log-probabilities that differ by less, differ by rounding.
_ROUNDING = 1e-4
# Counts and seconds that records have for each prompt.
_BY_PROMPT = ("emitted", "target_calls", "draft_calls", "accepted_by_depth",
              "plain_tokens", "plain_seconds")
# What is known of prompts that shared their batches with others.
_OF_BATCHES = ("tokens", "seconds", "baseline_rate")


def long_records(records, categories, parameter_ratio) -> list[dict]:
  """Returns the long records of cells, by category, all prompts the last.

  Plain decoding is among the records of `tree_cells.measure`; `categories` are
  of each prompt, or None. `name` is the method without options that tell
  nothing apart, `deviation` the distance of the mean log-probability from that
  of plain decoding, in standard errors.
  """
  plain = {r["temperature"]: r for r in records if r["method"] == PLAIN}
  short = short_names([r["method"] for r in records])
  cells = []
  for record in records:
    name, temperature = record["method"], record["temperature"]
    keys = {"temperature": temperature, "method": name, "label": label(name),
            "name": short[name], "nodes": record["tree_nodes"],
            "depth": record["depth"]}
    for category in sorted(set(categories or ())):
      chosen = np.flatnonzero(np.array(categories) == category)
      cells += text_tables.long_records(
          main(of_prompts(record, chosen), parameter_ratio),
          category=category, prompts=len(chosen), **keys)
    figures = {**record["metrics"],
               "compile_seconds": record["compile_seconds"],
               "deviation": _deviation(record, plain[temperature])}
    # Shares without intervals, each a figure of its own.
    figures["acceptance_by_rank"] = [[x] for x in figures["acceptance_by_rank"]]
    cells += text_tables.long_records(
        figures, category=ALL, prompts=len(record["emitted"]), **keys)
  return cells


def _deviation(record, plain):
  if abs(record["metrics"]["log_prob"][0] -
         plain["metrics"]["log_prob"][0]) < _ROUNDING:
    return 0.0
  return metrics.deviation(record["log_prob"], record["emitted"],
                           plain["log_prob"], plain["emitted"])


def label(name) -> str:
  """Returns what papers call a method, without its sizes.

  "rsd_s(3x4, traversal)" is "RSD-S, traversal".
  """
  family = name.split("(")[0]
  # After its sizes, a name has its verification if that is not the default.
  _, *forms = name.removesuffix(")").split(", ")
  # Older records may name it by an alias.
  forms = [verifiers.canonical(form) for form in forms if form.isidentifier()]
  return ", ".join([LABELS.get(family, family), *forms])


def short_names(names) -> dict[str, str]:
  """Returns names without options, where no methods differ in these alone."""
  short = {name: _OPTION.sub("", name) for name in names}
  count = collections.Counter(short.values())
  return {name: x if count[x] == 1 else name for name, x in short.items()}


def of_record(record, parameter_ratio) -> dict:
  """Computes the reported figures of a record, as JSON values.

  Figures of `main`, and `log_prob` a token; `idle_share`, of the row-steps in
  which a row had finished or only filled the batch; `acceptance_by_rank`, of
  siblings; and where drafts go on over calls, `mean_accepted`.
  """
  idle = 1 - metrics.ratio(record["target_calls"], record["row_steps"])
  figures = {
      "log_prob": intervals.interval(record["log_prob"], record["emitted"]),
      # A search calls the target several times in a step: no share is known.
      **({} if idle < 0 else {"idle_share": [idle]}),
      # Only trees have siblings.
      "acceptance_by_rank": metrics.acceptance_by_rank(
          [record.get("accepted_by_rank", [])],
          [record.get("tested_by_rank", [])])}
  if "post_verify_calls" in record:
    figures["mean_accepted"] = [metrics.mean_accepted(
        record["accepted_by_depth"], sum(record["target_calls"]),
        record["post_verify_calls"])]
  return {**main(record, parameter_ratio),
          **{k: intervals.json_values(v) for k, v in figures.items()}}


def main(record, parameter_ratio) -> dict:
  """Computes the figures that papers report, as JSON values.

  `block_efficiency`, `mbsu`, `acceptance_by_depth`, a list of figures; where it
  was timed `token_rate`; and with timings of plain decoding `plain_rate` and
  the ratio to it, `token_rate_ratio`.
  """
  calls = metrics.ratio(record["draft_calls"], record["target_calls"])
  efficiency = intervals.interval(record["emitted"], record["target_calls"])
  figures = {"block_efficiency": efficiency,
             "mbsu": efficiency * metrics.mbsu(1, calls, parameter_ratio)}
  if "seconds" in record:
    figures["token_rate"] = intervals.interval(record["tokens"],
                                               record["seconds"])
  if "plain_seconds" in record:
    plain = record["plain_tokens"], record["plain_seconds"]
    figures["plain_rate"] = [metrics.ratio(*plain)]
    figures["token_rate_ratio"] = intervals.relative(
        record["tokens"], record["seconds"], *plain)
  elif "baseline_rate" in record:
    figures["plain_rate"] = [record["baseline_rate"]]
    figures["token_rate_ratio"] = (figures["token_rate"] /
                                   record["baseline_rate"])
  return {**{k: intervals.json_values(v) for k, v in figures.items()},
          "acceptance_by_depth": _acceptance(record["accepted_by_depth"])}


def gain(record, other, metric) -> list:
  """Returns the gain in % over another record of the same prompts, as JSON.

  `metric` is "block_efficiency" or "mbsu"; with its paired 95 % interval.
  """
  # MBSU is block efficiency by the costs of a step, which have no interval.
  cost, other_cost = (r["metrics"]["block_efficiency"][0] /
                      r["metrics"][metric][0] for r in (record, other))
  ratio = intervals.relative(record["emitted"], record["target_calls"],
                             other["emitted"], other["target_calls"])
  return intervals.json_values(100 * (ratio * other_cost / cost - 1))


def of_prompts(record, chosen) -> dict:
  """Returns what `main` needs of a record, for prompts of these numbers.

  Without seconds where prompts shared their batches.
  """
  part = {name: values for name, values in record.items()
          if name not in _OF_BATCHES}
  part.update((name, [record[name][i] for i in chosen])
              for name in _BY_PROMPT if name in record)
  if "prompt_seconds" in record:
    part.update(tokens=part["emitted"],
                seconds=[record["prompt_seconds"][i] for i in chosen])
  return part


def _acceptance(counts):
  """Returns, per level, the share of target calls that accepted a token of it.

  Of the calls that accepted one of the level above; counts `[R, D + 1]` are the
  target calls of each prompt that accepted exactly 0, 1, ..., D tokens.
  """
  calls = np.array(counts)
  at_least = np.cumsum(calls[:, ::-1], axis=1)[:, ::-1]
  return [intervals.json_values(intervals.interval(
      at_least[:, level + 1], at_least[:, level]))
          for level in range(calls.shape[1] - 1)]
