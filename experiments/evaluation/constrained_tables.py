"""The table of `experiments.cdsl`."""

import numpy as np

from experiments.app import text_tables
from experiments.scoring import intervals
from experiments.scoring import task_rewards

# Titles and format specs of figures.
_METRICS = {
    **{name: (score.title, f".{score.digits}f")
       for name, score in task_rewards.SCORES.items()},
    "log_prob": ("log-prob a token", ".2f"), "bleu": ("BLEU", ".1f"),
    "rouge_l": ("ROUGE-L", ".1f"), "distinct_2": ("distinct-2", ".2f"),
    "seconds": ("s an example", ".3f"), "greedy_seconds": ("greedy, s", ".3f"),
    "slowdown": ("x greedy", ".1f"), "target_calls": ("target calls", ".2f"),
    "draft_calls": ("draft calls", ".2f"),
    "reward_calls": ("reward calls", ".2f"),
    "states": ("S1 S2 S3 S4, %", ".0f"),
    "first_seconds": ("first call, s", ".1f")}
# Columns that do not fit a terminal.
_LONG = ("bleu", "distinct_2", "reward_calls", "first_seconds")


def terminal(records) -> str:
  """Formats the table of `constrained_cells.measure` as plain text."""
  lines = _lines(records, "", text_tables.plus_minus, _LONG)
  return (f"{text_tables.plain_table(lines)}\n\nCalls are per committed token; "
          f"± is half of the 95 % interval.\n{verdict(records)}").rstrip()


def verdict(records) -> str:
  """Compares each CDSL with the best CDLH; "" without both.
  Of methods of equal scores the best has the fewest target calls."""
  name = task_rewards.first(records[0]["metrics"])
  labelled = lambda start: [r for r in records if r["label"].startswith(start)]
  best = max(labelled("CDLH"), default=None, key=lambda r: (
      r["metrics"][name][0], -r["metrics"]["target_calls"][0]))
  if best is None or not labelled("CDSL"):
    return ""
  axis = task_rewards.SCORES[name].axis
  return "\n".join([
      f"Beside {best['label']}, paired by examples ({axis}; log-prob a token, "
      "mean of texts):",
      *(_beside(best, r, name) for r in labelled("CDSL"))])


def _beside(theirs, ours, name):
  """Returns a line of differences, and of what theirs takes beside ours."""
  score = task_rewards.SCORES[name]
  scores = lambda r: score.scale * np.array(r[name], float)
  log_probs = lambda r: np.divide(r["log_prob"], r["emitted"])
  gain = lambda of, digits: "{:+.{d}f} [{:+.{d}f}, {:+.{d}f}]".format(
      *intervals.interval(of(ours) - of(theirs)), d=digits)
  times = lambda figure: (
      theirs["metrics"][figure][0] / ours["metrics"][figure][0])
  time = (f", {times('slowdown'):.1f} times the time"
          if "slowdown" in ours["metrics"] else "")
  return (f"- {ours['label']}: {gain(scores, score.digits)}; "
          f"{gain(log_probs, 3)}; {theirs['label']} takes "
          f"{times('target_calls'):.1f} times the target calls{time}")


def write(workdir, records, config, about="") -> None:
  """Writes summary.md into a folder, a Path."""
  text_tables.write(workdir / "summary.md", [
      "# Constrained decoding", about,
      f"Task {config.task}, {len(records[0]['emitted'])} examples, batch "
      f"{config.batch}. {_NOTE}",
      ("", _lines(records, "method", text_tables.interval)),
      "\n".join(f"- {r['label']}: {r['spec']}" for r in records),
      verdict(records)])


def _lines(records, title, form, without=()):
  """Returns the lines of a table of those figures that the records have."""
  long = [figure for r in records for figure in text_tables.long_records(
      {**r["metrics"], "states": _states(r),
       "first_seconds": r["first_seconds"]}, label=r["label"])]
  names = {r["metric"] for r in long} - set(without)
  return text_tables.pivot(
      long, {"label": title}, form=form,
      titles={x: column for x, (column, _) in _METRICS.items() if x in names},
      specs={x: spec for x, (_, spec) in _METRICS.items()})


def _states(record):
  """Returns the shares of CDSL's states, one after the other."""
  total = np.sum(record["states"], axis=0)
  return [[100 * x] for x in total / total.sum()] if total.sum() else None


_NOTE = """\
Figures with 95 % bootstrap intervals over examples, of seconds over batches.

- Hard coverage: examples with all words; soft: mean share of the words.
- Reward: of the whole text, prompt included, by a reward model.
- BLEU (mean of sentences) and ROUGE-L are against one reference.
- Seconds, where there are any, exclude compilation; "x greedy" is over
  "greedy, s", greedy decoding timed in the course of the same run.
- Calls are per committed token: sequential forwards of target and draft, and
  texts that the reward scored.
- S1 to S4: shares of CDSL's iterations, see `methods/cdsl.py`.

Settings and environment: run.json. Texts and counts: results.jsonl."""
