"""Block efficiency against memory, of the trees of a run of `experiments.rsd`.

  python -m experiments.tree_budget --workdir=runs/verification
  python -m experiments.tree_budget --workdir=runs/verification --batch=256 \\
      --memory_budget=900MB

Reads the results of the run, decodes nothing, and estimates what each tree
needs besides the weights: caches, logits, masks and temporaries. Prints the
trees that no other one beats in both, writes `tree_budget.png`, and, of a
budget, names the smallest tree that keeps most of the tokens a call (SpecMemo,
arXiv 2506.01986).
"""

import pathlib
from typing import NamedTuple

from absl import flags
import ml_collections

from experiments.app import launch
from experiments.app import text_tables
from experiments.devices import memory_estimate
from experiments.devices import model_pair
from experiments.evaluation import figures
from experiments.evaluation import method_grid
from experiments.evaluation import record_figures
from experiments.evaluation import results_store
from experiments.flags import memory_budget_flag

flags.adopt_module_key_flags(memory_budget_flag)
# Share of the best block efficiency that a smaller tree must have.
_KEPT = 0.95
_MIB = 2**20
FIGURE = "tree_budget.png"


class Tree(NamedTuple):
  """A tree at a temperature: method, label, bytes, block efficiency `[3]`."""
  method: str
  label: str
  size: int
  efficiency: list[float]


def main():
  workdir = pathlib.Path(WORKDIR.value)
  settings, records = results_store.of_rsd(workdir)
  budget = memory_budget_flag.num_bytes()
  panels = _trees(settings, records)
  for temperature, trees in panels.items():
    print(report(temperature, trees, budget) + "\n")
  figures.save_png(_draw(panels), workdir / FIGURE)
  print(workdir / FIGURE)


def _trees(settings, records):
  """Returns a dict from temperatures to lists of `Tree`."""
  # Runs that are older than this field have none.
  config = ml_collections.ConfigDict({"draft_temperature": 0.0, **settings})
  methods, _ = method_grid.from_config(config)
  methods = {method.name: method for method in methods}
  pair = model_pair.open_pair(config.target, config.draft, config.dtype,
                              config.draft_dtype, config.weights,
                              config.draft_weights)
  by_cell = {(r["temperature"], r["method"]): r for r in records}
  sizes, found = {}, {}
  for temperature in sorted({r["temperature"] for r in records}):
    for name, method in methods.items():
      if (temperature, name) in by_cell:
        kind = method.sampled if temperature else method.greedy
        if kind not in sizes:
          need = memory_estimate.estimate(
              pair, [kind], BATCH.value or config.batch, config.prompt_length,
              config.max_new_tokens)
          sizes[kind] = sum(need) - need.weights
        found.setdefault(temperature, []).append(Tree(
            name, record_figures.label(name), sizes[kind],
            by_cell[temperature, name]["metrics"]["block_efficiency"]))
  return found


def front(trees: list[Tree]) -> list[Tree]:
  """Returns the trees that no smaller one reaches, by rising size."""
  found = []
  for tree in sorted(trees, key=lambda x: (x.size, -x.efficiency[0])):
    if not found or tree.efficiency[0] > found[-1].efficiency[0]:
      found.append(tree)
  return found


def chosen(trees: list[Tree], budget: int) -> Tree | None:
  """Returns the smallest good tree that fits; None if none does."""
  fitting = [tree for tree in front(trees) if tree.size <= budget]
  if not fitting:
    return None
  least = _KEPT * fitting[-1].efficiency[0]
  return next(tree for tree in fitting if tree.efficiency[0] >= least)


def report(temperature, trees: list[Tree], budget: int | None) -> str:
  """Returns the table of a temperature, and the choice for a budget."""
  lines = [["tree", "MiB", "block efficiency"]]
  lines += [[tree.method, f"{tree.size / _MIB:.1f}",
             text_tables.plus_minus(*tree.efficiency)] for tree in front(trees)]
  text = f"temperature {temperature:g}\n{text_tables.plain_table(lines)}"
  if budget is None:
    return text
  tree = chosen(trees, budget)
  return text + (f"\nof {budget / _MIB:.1f} MiB: " + (
      "no tree fits" if tree is None else
      f"{tree.method}, {tree.size / _MIB:.1f} MiB"))


def _draw(found):
  """Draws a panel of each temperature, all trees and the front."""
  panels = {}
  for temperature, trees in found.items():
    series = {}
    for tree in trees:
      series.setdefault(tree.label, []).append(
          (tree.size / _MIB, [tree.efficiency[0], None, None]))
    panels[0, temperature] = figures.Panel(series, f"T = {temperature:g}",
                                           "MiB besides the weights")
  fig = figures.chart(panels, "block efficiency", linestyle="none")
  for ax, trees in zip(fig.axes, found.values()):
    best = front(trees)
    ax.step([tree.size / _MIB for tree in best],
            [tree.efficiency[0] for tree in best], where="post",
            color="black", linewidth=0.8)
  return fig


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  WORKDIR = flags.DEFINE_string("workdir", "runs/verification",
                                "Folder of a run of experiments.rsd.")
  BATCH = flags.DEFINE_integer("batch", 0, "Rows decoded together; 0 for those "
                               "of the run.", lower_bound=0)
  launch.run(main)
