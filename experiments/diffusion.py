"""Measures decoding of a masked-diffusion model: quality against parallelism.

  python -m experiments.diffusion --config=configs/diffusion.py

All methods of `dj.canvas.methods` on list operations, Sudoku and Latin squares.
"""

import functools
import json

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.app import preemption
from experiments.app import text_tables
from experiments.data import canvas_tasks
from experiments.devices import model_pair
from experiments.evaluation import canvas_cells
from experiments.harness import figures
from experiments.harness import provenance
from experiments.harness import store
from experiments.scoring import intervals
from models import checkpoints
from models.text import tokenizers

_COLUMNS = {"accuracy": "accuracy", "forwards_per_token": "forwards / token",
            "tokens_per_second": "tokens / s",
            "baseline_rate": "first method, tokens / s", "speed_up": "speed-up"}
# Tasks with several right answers, beside those that end in "_any".
_SEVERAL = ("shuffle", "latin")


def main():
  config = launch.config(CONFIG)
  _check(config)
  preemption.listen()
  methods = [canvas_cells.read(spec) for spec in config.methods]
  model, params = _load(config.model)
  # Speed-ups are relative to the first method.
  settings = {**json.loads(config.to_json()), "baseline": methods[0].name,
              "models": model_pair.digest_of(params)}
  workdir = store.open_workdir(WORKDIR.value, settings, ("methods",),
                               timed=True, compiled=True)
  # Task by task: a batch takes as long as its slowest row.
  examples = sorted(
      canvas_tasks.draw(config.canvas_tasks, config.examples, config.seed + 1),
      key=lambda example: config.canvas_tasks.index(example[0]))
  decoders = functools.partial(canvas_cells.decoder, config, model, params)
  records = canvas_cells.measure(config, methods, decoders, examples,
                                 workdir / store.RESULTS)
  write(workdir, records, config, provenance.markdown(settings))
  print(text_tables.render(tables(records, config.canvas_tasks),
                           text_tables.terminal))
  print(f"{workdir}: summary.md, {store.RESULTS}, {store.RUN}, quality.png, "
        "quality.pdf")


def _check(config):
  launch.check_positive(config, "examples", "batch", "block", "filter_examples",
                        "filter_steps")
  if config.examples % config.batch:
    raise launch.UserError(f"--config.batch={config.batch} must divide "
                           f"--config.examples={config.examples}.")
  if canvas_tasks.CANVAS % config.block:
    raise launch.UserError(f"--config.block={config.block} must divide "
                           f"{canvas_tasks.CANVAS}, the positions of a canvas.")
  if not config.methods or not config.canvas_tasks:
    raise launch.UserError("--config.methods and --config.canvas_tasks must "
                           "not be empty.")
  launch.check_known("--config.canvas_tasks", config.canvas_tasks,
                     canvas_tasks.TASKS)


def _load(name):
  """Returns the model and its parameters; it must know the tasks' words."""
  folder = launch.model_folder(name)
  with launch.user_errors(OSError, ValueError):
    loaded = checkpoints.load_masked(folder)
    if tokenizers.load(folder).get_vocab() != (
        canvas_tasks.tokenizer().get_vocab()):
      raise ValueError(f"--config.model={name!r} was not trained on "
                       "--config.canvas_tasks.")
  return loaded


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
            intervals.interval(right, seed=seed))))
  return figures.Panel({x: sorted(points) for x, points in series.items()},
                       title, "tokens a forward")


if __name__ == "__main__":
  CONFIG = launch.define_config("diffusion", "diffusion:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/diffusion",
                                "Folder of results.")
  launch.run(main)
