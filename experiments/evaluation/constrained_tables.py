"""Tables and the trade-off figure of constrained decoding."""

import re

import numpy as np

from experiments.app import text_tables
from experiments.evaluation import figures
from experiments.scoring import task_rewards

# Titles and format specs of figures.
METRICS = {
    **{name: (score.title, f".{score.digits}f")
       for name, score in task_rewards.SCORES.items()},
    "log_prob": ("log-prob a token", ".2f"), "bleu": ("BLEU", ".1f"),
    "rouge_l": ("ROUGE-L", ".1f"), "distinct_2": ("distinct-2", ".2f"),
    "seconds": ("s an example", ".3f"), "slowdown": ("x greedy", ".1f"),
    "target_calls": ("target calls", ".2f"),
    "draft_calls": ("draft calls", ".2f"),
    "reward_calls": ("reward calls", ".2f"),
    "states": ("S1 S2 S3 S4, %", ".0f"),
    "first_seconds": ("first call, s", ".1f")}
# Columns that do not fit a terminal.
_LONG = ("bleu", "distinct_2", "reward_calls", "first_seconds")


def terminal(records):
  """Formats the table as plain text."""
  lines = _lines(records, "", text_tables.plus_minus, _LONG)
  return f"{text_tables.plain_table(lines)}\n\n{_CALLS}"


def write(workdir, records, config, about=""):
  """Writes summary.md and tradeoff.png into a folder.

  Args:
    workdir: the folder, a Path.
    records: of `constrained_run.run`, with `label`, `spec` and `metrics`.
    config: `task`, `examples` and `batch`.
    about: of `provenance.markdown`.
  """
  text_tables.write(workdir / "summary.md", [
      "# Constrained decoding", about,
      f"Task {config.task}, {len(records[0]['emitted'])} examples, batch "
      f"{config.batch}. {_NOTE}",
      ("", _lines(records, "method", text_tables.interval)),
      "\n".join(f"- {r['label']}: {r['spec']}" for r in records)])
  figures.save_png(_draw(records), workdir / "tradeoff.png")


def _lines(records, title, form, without=()):
  """Returns the lines of a table of those figures that the records have."""
  found = [figure for r in records for figure in text_tables.long_records(
      {**r["metrics"], "states": _states(r),
       "first_seconds": r["first_seconds"]}, label=r["label"])]
  names = {r["metric"] for r in found} - set(without)
  return text_tables.pivot(
      found, {"label": title}, form=form,
      titles={x: METRICS[x][0] for x in METRICS if x in names},
      specs={x: spec for x, (_, spec) in METRICS.items()})


def _states(record):
  """Returns the shares of CDSL's states, one after the other."""
  total = np.sum(record["states"], axis=0)
  return [[100 * x] for x in total / total.sum()] if total.sum() else None


def _draw(records):
  """Draws a score against seconds; lines join the settings of a method."""
  name, families = task_rewards.first(records[0]["metrics"]), {}
  for record in records:
    family = re.sub(r" a=.*|, slack.*| n=\d+$", "", record["label"])
    families.setdefault(family, []).append(
        (record["metrics"]["slowdown"][0], record["metrics"][name]))
  return figures.chart({(0, 0): figures.Panel(
      {family: sorted(points, key=lambda x: x[0])
       for family, points in families.items()},
      x_title="time per example, relative to greedy decoding", log=True)},
                       task_rewards.SCORES[name].axis, width=6)


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
