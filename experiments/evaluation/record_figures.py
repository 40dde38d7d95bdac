"""Figures of the records of `run.run`, of all prompts or by category.

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
FASTER, SLOWER, EVEN = "faster", "slower", "no difference"
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

  As the tables of Spec-Bench (arXiv 2401.07851) have them, with intervals.

  Args:
    records: of `run.run`, with `temperature`, `compile_seconds` and `metrics`
      of `of_record`; those of plain decoding among them.
    categories: of each prompt; None for prompts of no category.
    parameter_ratio: parameters of the draft over those of the target.

  Returns:
    list of dicts, see `text_tables`. Keys: `temperature`, `method`; `label` and
    `name`, see `label` and `short_names`; `category`; `prompts`, how many;
    `nodes` and `depth` of the tree; `against_plain`, `FASTER` or `SLOWER` than
    plain decoding if all of the interval is, else `EVEN`, None where it is not
    known; and `record`. Metrics: those of `main`; `against_plain` again, for
    columns; of all prompts also those of `of_record`, `compile_seconds` and
    `deviation`, the distance of the mean log-probability from that of plain
    decoding, in standard errors.
  """
  plain = {r["temperature"]: r for r in records if r["method"] == PLAIN}
  short = short_names([r["method"] for r in records])
  found = []
  for record in records:
    name, temperature = record["method"], record["temperature"]
    keys = {"temperature": temperature, "method": name, "label": label(name),
            "name": short[name], "nodes": record["tree_nodes"],
            "depth": record["depth"], "record": record}
    of_all = {"compile_seconds": record["compile_seconds"],
              "deviation": _deviation(record, plain[temperature])}
    for category, count, figures in _parts(record, categories, parameter_ratio):
      verdict = _against_plain(name, figures)
      figures |= {"against_plain": verdict}
      found += text_tables.long_records(
          figures | of_all if category == ALL else figures, category=category,
          prompts=count, against_plain=verdict, **keys)
  return found


def _parts(record, categories, parameter_ratio):
  """Yields (category, number of prompts, figures)."""
  for category in sorted(set(categories or ())):
    chosen = np.flatnonzero(np.array(categories) == category)
    yield category, len(chosen), main(of_prompts(record, chosen),
                                      parameter_ratio)
  figures = dict(record["metrics"])
  # Shares without intervals, each a figure of its own.
  figures["acceptance_by_rank"] = [[x] for x in figures["acceptance_by_rank"]]
  yield ALL, len(record["emitted"]), figures


def _deviation(record, plain):
  if abs(record["metrics"]["log_prob"][0] -
         plain["metrics"]["log_prob"][0]) < _ROUNDING:
    return 0.0
  return metrics.deviation(record["log_prob"], record["emitted"],
                           plain["log_prob"], plain["emitted"])


def _against_plain(method, figures):
  _, low, high = figures.get("token_rate_ratio", [None] * 3)
  if method == PLAIN or low is None:
    return None
  return FASTER if low > 1 else SLOWER if high < 1 else EVEN


def label(name) -> str:
  """Returns what papers call a method, without its sizes.

  Args:
    name: such as "rsd_s(3x4, traversal)", which is "RSD-S, traversal".
  """
  family = name.split("(")[0]
  # After its sizes, a name has its verification if that is not the default.
  _, *forms = name.removesuffix(")").split(", ")
  # Older records may name it by an alias.
  forms = [verifiers.canonical(form) for form in forms if form.isidentifier()]
  return ", ".join([LABELS.get(family, family), *forms])


def short_names(names) -> dict[str, str]:
  """Returns names without options, where no two methods differ in these alone.
  """
  short = {name: _OPTION.sub("", name) for name in names}
  count = collections.Counter(short.values())
  return {name: x if count[x] == 1 else name for name, x in short.items()}


def of_record(record, parameter_ratio, seed=0) -> dict:
  """Computes the reported figures of a record.

  Args:
    record: of `run.run`.
    parameter_ratio: parameters of the draft over those of the target.
    seed: of the bootstrap.

  Returns:
    dict of JSON values: those of `main`, and `log_prob`. `idle_share` is
    [share] of the row-steps in which a row had finished, or only filled the
    batch. `acceptance_by_rank` has no intervals. `mean_accepted`, see
    `metrics`, is there if drafts go on over calls.
  """
  found = {
      "log_prob": intervals.interval(record["log_prob"], record["emitted"],
                                     seed),
      "idle_share": [1 - metrics.ratio(record["target_calls"],
                                       record["row_steps"])],
      # Only trees have siblings.
      "acceptance_by_rank": metrics.acceptance_by_rank(
          [record.get("accepted_by_rank", [])],
          [record.get("tested_by_rank", [])])}
  if "post_verify_calls" in record:
    found["mean_accepted"] = [metrics.mean_accepted(
        record["accepted_by_depth"], sum(record["target_calls"]),
        record["post_verify_calls"])]
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
