"""Tables and a figure of experiments on a canvas."""

import numpy as np

from experiments.app import text_tables
from experiments.evaluation import figures
from experiments.scoring import intervals

COLUMNS = {"accuracy": "accuracy", "forwards_per_token": "forwards / token",
           "tokens_per_second": "tokens / s", "speed_up": "speed-up"}


def methods(records) -> list[list[str]]:
  """Returns lines: each method with its figures and their intervals."""
  return text_tables.pivot(
      [r for x in records for r in text_tables.long_records(
          x["metrics"], method=x["method"])],
      {"method": "method"}, titles=COLUMNS, form=_interval)


def tasks(records, names) -> list[list[str]]:
  """Returns lines: the accuracy of each method in each task."""
  return text_tables.pivot(
      [r for x in records for r in text_tables.long_records({
          name: np.mean(np.array(x["right"])[np.equal(x["tasks"], name)])
          for name in names if name in x["tasks"]}, method=x["method"])],
      {"method": "method"}, titles={name: name for name in names})


def lossless(records) -> list[list[str]]:
  """Returns lines: FreeDave against the static decoding that it keeps."""
  by_name = {record["method"]: record for record in records}
  lines = [["method", "equal rows", "forwards saved"]]
  for record in records:
    base = by_name.get(_base(record["method"]))
    if base is None or record is base:
      continue
    equal = sum(x == y for x, y in zip(record["tokens"], base["tokens"]))
    lines.append([record["method"], f"{equal} of {len(base['tokens'])}",
                  f"{sum(base['forwards']) / sum(record['forwards']):.2f} x"])
  return lines


def text(records, names, form) -> str:
  """Joins all tables, formatted by a function of `text_tables`."""
  parts = [methods(records), tasks(records, names), lossless(records)]
  return text_tables.render([("", x) for x in parts if len(x) > 1], form)


def write(folder, records, config, note) -> None:
  """Writes `summary.md` and `quality.png`."""
  text_tables.write(folder / "summary.md", [note, text(
      records, config.canvas_tasks, text_tables.markdown)])
  figures.save_png(_draw(records, config), folder / "quality.png")


def _base(name):
  """Returns the name of what a method is lossless against, or None."""
  if not name.startswith("free_dave("):
    return None
  return f"static({name.removeprefix('free_dave(').split(',')[0]})"


def _interval(value, low, high, _=None):
  return text_tables.interval(value, low, high,
                              ".2f" if value < 100 else ".0f")


def _draw(records, config):
  several = [x for x in config.canvas_tasks
             if x.endswith("_any") or x in ("shuffle", "latin")]
  one = [x for x in config.canvas_tasks if x not in several]
  panels = {}
  for i, (names, title) in enumerate((
      (one, "one right answer"), (several, "several right answers"))):
    series = {}
    for record in records if names else ():
      series.setdefault(record["method"].split("(")[0], []).append(
          _point(record, names, config.seed))
    panels[0, i] = figures.Panel(
        {family: sorted(points) for family, points in series.items()}, title,
        "tokens a forward")
  return figures.chart(panels, "accuracy")


def _point(record, names, seed):
  """Returns (tokens a forward, accuracy with its interval) in some tasks."""
  chosen = np.isin(record["tasks"], names)
  take = lambda name: np.array(record[name], float)[chosen]
  return take("emitted").sum() / take("forwards").sum(), intervals.json_values(
      intervals.interval(take("right"), np.ones(chosen.sum()), seed))
