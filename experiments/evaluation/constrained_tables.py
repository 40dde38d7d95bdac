"""Tables and the trade-off figure of constrained decoding."""

import re

from matplotlib import figure
import numpy as np

from decoding_jax import metrics
from experiments.app import text_tables
from experiments.evaluation import cdsl_cost_model
from experiments.evaluation import equal_forwards
from experiments.evaluation import figures
from experiments.evaluation import tables
from experiments.scoring import task_rewards

METRICS = {
    **{name: (score.title, score.digits)
       for name, score in task_rewards.SCORES.items()},
    "log_prob": ("log-prob a token", 2), "bleu": ("BLEU", 1),
    "rouge_l": ("ROUGE-L", 1), "distinct_2": ("distinct-2", 2),
    "seconds": ("s an example", 3), "slowdown": ("x greedy", 1),
    "target_calls": ("target calls", 2), "draft_calls": ("draft calls", 2),
    "reward_calls": ("reward calls", 2)}
# Columns that fit a terminal.
_SHORT = (*task_rewards.SCORES, "log_prob", "rouge_l", "seconds", "slowdown",
          "target_calls", "draft_calls")


def terminal(records, note=""):
  """Formats the table and the comparisons as plain text, `note` the last."""
  shown = _shown(_SHORT, records)
  lines = [["", *(title for title, _ in shown.values()), "S1 S2 S3 S4, %"]]
  for record in records:
    lines.append([record["label"], *(
        tables.plus_minus(record["metrics"][name], digits)
        for name, (_, digits) in shown.items()), _states(record)])
  return "\n".join([text_tables.plain_table(lines), "", _CALLS,
                    *_remarks(records), *filter(None, [note])])


def write(workdir, records, config, about="", note=""):
  """Writes summary.md and tradeoff.png into a folder.

  Args:
    workdir: the folder, a Path.
    records: of `constrained_run.run`, with `label`, `spec` and `metrics`.
    config: `task`, `examples` and `batch`.
    about: of `provenance.markdown`.
    note: how settings were chosen, or "".
  """
  shown = _shown(METRICS, records)
  lines = [["method", *(title for title, _ in shown.values()),
            "S1 S2 S3 S4, %", "first call, s"]]
  for record in records:
    lines.append([record["label"], *(
        tables.interval(record["metrics"][name], digits)
        for name, (_, digits) in shown.items()),
        _states(record), f"{record['first_seconds']:.1f}"])
  specs = [f"- {r['label']}: {r['spec']}" for r in records]
  text = ["# Constrained decoding", *filter(None, [about]),
          f"Task {config.task}, {len(records[0]['emitted'])} examples, batch "
          f"{config.batch}. {_NOTE}",
          text_tables.markdown_table(lines),
          "\n".join([*_remarks(records), *filter(None, [note])]),
          "\n".join(specs)]
  (workdir / "summary.md").write_text("\n\n".join(text) + "\n", "utf-8")
  figures.save_png(_draw(records), workdir / "tradeoff.png")


def _remarks(records):
  return [*comparisons(records), *equal_forwards.lines(records)]


def comparisons(records):
  """Returns a line for each CDSL that has a CDLH of the same sizes."""
  plain = {cdsl_cost_model.sizes(r): r for r in records
           if r["spec"].startswith("cdlh(") and "rollout=target" in r["spec"]}
  return [
      _comparison(r, plain[cdsl_cost_model.sizes(r)]) for r in records
      if r["spec"].startswith(("cdsl(", "cdsl_extended("))
      and cdsl_cost_model.sizes(r) in plain
  ]


def _shown(names, records):
  """Returns titles and digits of those figures that the records have."""
  return {name: METRICS[name] for name in names
          if name in records[0]["metrics"]}


def _comparison(cdsl, cdlh):
  name = task_rewards.first(cdsl)
  score, ones = task_rewards.SCORES[name], np.ones(len(cdsl[name]))
  gain = score.scale * (np.array(cdsl[name], float) - np.array(cdlh[name]))
  low, high = (metrics.ratio_interval(gain, ones) if len(ones) > 1
               else (np.nan, np.nan))
  speed = cdlh["metrics"]["slowdown"][0] / cdsl["metrics"]["slowdown"][0]
  least, most = cdsl_cost_model.bounds(cdsl, cdlh, score.runs_model)
  verdict = "inside" if least <= speed <= most else "OUTSIDE"
  values = [f"{x:+.{score.digits}f}" for x in (gain.mean(), low, high)]
  before, after = score.change
  return (f"{cdsl['label']} against {cdlh['label']}: {before} "
          f"{values[0]}{after} [{values[1]}, {values[2]}], "
          f"{speed:.1f} times as fast, {verdict} the cost model's "
          f"{least:.1f} to {most:.1f}.")


def _states(record):
  total = np.sum(record["states"], axis=0)
  if not total.sum():
    return "-"
  return " ".join(f"{100 * x:.0f}" for x in total / total.sum())


def _draw(records):
  """Draws a score against seconds; lines join the settings of a method."""
  # No pyplot: it would look for a display.
  fig = figure.Figure(figsize=(7, 4.5), layout="constrained")
  ax = fig.subplots()
  name, families = task_rewards.first(records[0]["metrics"]), {}
  for record in records:
    family = re.sub(r" a=.*|, slack.*| n=\d+$", "", record["label"])
    families.setdefault(family, []).append(record)
  for family, style in figures.styles(families).items():
    members = sorted(families[family],
                     key=lambda r: r["metrics"]["slowdown"][0])
    figures.draw(ax, [r["metrics"]["slowdown"][0] for r in members],
                 [r["metrics"][name] for r in members], family, style)
  figures.log_axis(ax)
  ax.set_xlabel("time per example, relative to greedy decoding")
  ax.set_ylabel(task_rewards.SCORES[name].axis)
  ax.grid(alpha=0.3)
  fig.legend(loc="outside right upper", frameon=False, fontsize=8)
  return fig


_CALLS = "Calls are per committed token; ± is half of the 95 % interval."
_NOTE = """\
Figures with 95 % bootstrap intervals over examples, of seconds over batches.

- Hard coverage: examples with all words; soft: mean share of the words.
- Reward: of the whole text, prompt included, by a reward model.
- BLEU (mean of sentences) and ROUGE-L are against one reference.
- Seconds exclude compilation; "x greedy" is relative to greedy decoding, timed
  in the course of the same run.
- Calls are per committed token: sequential forwards of target and draft, and
  texts that the reward scored.
- S1 to S4: shares of CDSL's iterations, see `methods/cdsl.py`.

Settings and environment: run.json. Texts and counts: results.jsonl."""
