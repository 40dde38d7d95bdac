"""The tables and the figure of `experiments.diffusion`."""

import numpy as np

from experiments.app import text_tables
from experiments.harness import figures
from experiments.scoring import intervals

_COLUMNS = {"accuracy": "accuracy", "forwards_per_token": "forwards / token",
            "tokens_per_second": "tokens / s",
            "baseline_rate": "first method, tokens / s", "speed_up": "speed-up"}
# Tasks with several right answers, beside those that end in "_any".
_SEVERAL = ("shuffle", "latin")


def tables(records, tasks) -> list:
  """Returns tables of the figures of methods, and of accuracy by task."""
  by_task = [r for x in records for r in text_tables.long_records({
      name: np.mean(np.array(x["right"])[np.equal(x["tasks"], name)])
      for name in tasks if name in x["tasks"]}, method=x["method"])]
  return [("", text_tables.pivot(
      [r for x in records for r in text_tables.long_records(
          x["metrics"], method=x["method"])],
      {"method": "method"}, titles=_COLUMNS,
      form=lambda value, low, high, _: text_tables.interval(
          value, low, high, ".2f" if value < 100 else ".0f"))),
          ("", text_tables.pivot(by_task, {"method": "accuracy"},
                                 titles={name: name for name in tasks}))]


def write(folder, records, config, about) -> None:
  """Writes `summary.md` and the figure quality."""
  text_tables.write(folder / "summary.md",
                    [about, *tables(records, config.canvas_tasks)])
  several = [x for x in config.canvas_tasks
             if x.endswith("_any") or x in _SEVERAL]
  one = [x for x in config.canvas_tasks if x not in several]
  figures.write(folder, "quality", {
      (0, 0): _panel(records, one, config.seed, "one right answer"),
      (0, 1): _panel(records, several, config.seed, "several right answers")},
                "accuracy")


def _panel(records, names, seed, title):
  """Returns the panel of accuracy by tokens a forward in some tasks."""
  series = {}
  for record in records if names else ():
    chosen = np.isin(record["tasks"], names)
    emitted, forwards, right = (np.array(record[x], float)[chosen]
                                for x in ("emitted", "forwards", "right"))
    series.setdefault(record["method"].split("(")[0], []).append((
        emitted.sum() / forwards.sum(), intervals.json_values(
            intervals.interval(right, np.ones(chosen.sum()), seed))))
  return figures.Panel({x: sorted(points) for x, points in series.items()},
                       title, "tokens a forward")
