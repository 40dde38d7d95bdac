"""Tokens a target call by how many rows are decoded together.

  python -m experiments.row_counts --rows=16 --methods="speculative(6)" \\
      --methods="shared_budget(6, 4, 8)"

All rows run from the first to the last of `--steps` steps: they begin together,
and their texts could be longer. So what is counted is what a full batch does,
as in continuous batching, and not how one ends. Prompts are held-out source of
Python; the interval is of 95 %, over prompts. Trees that do not depend on other
rows are counted once. `--file=counts.jsonl` keeps counts for later starts.

`--costs=measured,cycles.jsonl` adds tokens in the time of a step of plain
decoding: forwards of a step are timed on this device, in turn, or have the
cycles of the target that `experiments.forward_cycles --file` saved, without a
drafter. What a step does besides is left out. `--figure=rows.png` draws the
best of each kind of method.
"""

import pathlib

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import tree
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from experiments.data import python_corpus
from experiments.devices import model_pair
from experiments.evaluation import figures
from experiments.evaluation import results_store
from experiments.timing import row_costs
from experiments.timing import row_plans

# Of a prompt, and of the module after it at least.
_TOKENS = 64, 128
_HEADER = "rows", "method", "tokens a call", "nodes a call"
# Of a cache whose forwards are timed: tokens of a row, and slots.
_LIVE, _SLOTS, _MEASURED = 96, 256, "measured"
# Kinds of methods in a figure; others are fixed trees.
_KINDS = {"speculative": "chain", "opt_tree": "best-first tree",
          row_plans.NAME: "shared budget"}
_FIXED = "fixed tree"


def main():
  methods = {spec: method_specs.read(spec, "--methods")
             for spec in METHODS.value}
  rows = launch.numbers(ROWS)
  if any(PROMPTS.value % n for n in rows):
    raise launch.UserError(f"--prompts={PROMPTS.value}: a multiple of --rows="
                           f"{','.join(ROWS.value)} is needed.")
  pair = model_pair.with_params(model_pair.open_pair(
      TARGET.value, DRAFT.value, "float32", "float32", "dtype", "dtype"))
  counts = [_counted(spec, method, pair, n, max(rows)) for n in rows
            for spec, method in methods.items()
            if n * _nodes(method, n) <= MOST_NODES.value]
  costs = {name: _costs(name, methods, pair, counts) for name in COSTS.value}
  lines = [(*_HEADER, *(f"rate, {name}" for name in costs))]
  for x in counts:
    lines.append((
        str(x["rows"]), methods[x["method"]].name,
        f"{x['mean']:.2f}±{x['error']:.2f}", f"{x['nodes']:.2f}",
        *(f"{_rate(x, of)[0]:.2f}" for of in costs.values())))
  print(text_tables.markdown("", lines))
  if FIGURE.value:
    panels = {(0, name): _panel(name, counts, of)
              for name, of in costs.items()}
    figures.save_png(figures.chart(panels, "tokens a second, plain = 1", 1),
                     FIGURE.value)


def _counted(spec, method, pair, rows, most):
  """Returns the record of a method and so many rows, from `--file` if there."""
  path = pathlib.Path(FILE.value) if FILE.value else None
  drafter = (method.sampled or method.greedy).drafter
  key = {"method": spec, "rows": rows if drafter.budget else most,
         "prompts": PROMPTS.value, "steps": STEPS.value,
         "temperature": TEMPERATURE.value}
  known = results_store.read(path, *key) if path else []
  record = next((x for x in known if key.items() <= x.items()), None)
  if not record:
    tokens, nodes = count(method, pair, key["rows"], PROMPTS.value, STEPS.value,
                          TEMPERATURE.value)
    error = 1.96 * float(tokens.std()) / len(tokens)**0.5
    record = {**key, "mean": float(tokens.mean()), "error": error,
              "nodes": nodes}
    if path:
      results_store.append(path, record)
  return {**record, "rows": rows}


def _nodes(method, rows):
  """Returns the nodes of a row, on average."""
  drafter = method.greedy.drafter
  return (drafter.budget(rows) / rows if drafter.budget else
          tree.num_nodes(drafter.layout))


def _costs(name, methods, pair, counts):
  """Returns a dict from (rows, spec) to the cost of a step, plain = 1."""
  found = {}
  for (n,), some in text_tables.grouped(counts, "rows").items():
    kinds = {x["method"]: row_costs.forwards(x["method"], methods[x["method"]],
                                             n) for x in some}
    used = list(dict.fromkeys([row_costs.PLAIN, *sum(kinds.values(), [])]))
    costs = (row_costs.timed(pair, _LIVE, _SLOTS, n, used)
             if name == _MEASURED else
             row_costs.saved(pathlib.Path(name), n, used))
    found |= {(n, spec): sum(map(costs.get, of)) / costs[row_costs.PLAIN]
              for spec, of in kinds.items()}
  return found


def _rate(record, costs):
  """Returns [figure, low, high] of tokens in the time of a plain step."""
  cost = costs[record["rows"], record["method"]]
  return [(record["mean"] + sign * record["error"]) / cost
          for sign in (0, -1, 1)]


def _panel(name, counts, costs):
  """Returns the panel of the best methods of each kind by rows."""
  series = {}
  for x in counts:
    kind = _KINDS.get(method_specs.parse(x["method"])[0], _FIXED)
    best = series.setdefault(kind, {})
    best[x["rows"]] = max(best.get(x["rows"], [0]), _rate(x, costs))
  return figures.Panel({kind: list(best.items()) for kind, best in
                        series.items()}, pathlib.Path(name).stem, "rows",
                       sorted({x["rows"] for x in counts}), log=True)


def count(method: dj.Method, pair, rows: int, prompts: int, steps: int,
          temperature: float):
  """Counts the first steps of prompts, so many rows together.

  Args:
    method: any with draft trees.
    pair: a `ModelPair` with parameters.
    rows: B.
    prompts: how many, a multiple of B.
    steps: of each row.
    temperature: of target and draft.

  Returns:
    `[prompts]`, tokens a step of each; and nodes a step of a row.
  """
  texts = np.array(python_corpus.prompts(
      pair.tokenizer, prompts, *_TOKENS, seed=0), np.int32)
  keys = jax.random.split(jax.random.key(0), prompts)
  deepest = tree.depth((method.sampled or method.greedy).drafter.layout)
  pair, tokens, nodes = model_pair.for_method(pair, method), [], []
  for start in range(0, prompts, rows):
    own = slice(start, start + rows)
    out = next(iter(dj.stream(
        keys[own], texts[own], np.full(rows, _TOKENS[0]), every=steps,
        method=method, target=pair.target, target_params=pair.target_params,
        draft=pair.draft, draft_params=pair.draft_params,
        # No text ends, and none is cut.
        max_new_tokens=(steps + 1) * (deepest + 1),
        sampling=dj.Sampling(temperature))))
    tokens.append(out.stats.emitted / steps)
    nodes.append(out.stats.nodes / steps)
  return np.concatenate(tokens), float(np.mean(nodes))


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  TARGET = flags.DEFINE_string("target", "python-target", "Target: folder, or "
                               "name of a shipped one.")
  DRAFT = flags.DEFINE_string("draft", "python-draft", "The same of the draft.")
  METHODS = flags.DEFINE_multi_string(
      "methods", ["speculative(3)", "shared_budget(3, 4, 6)"],
      "Methods with draft trees.")
  ROWS = flags.DEFINE_list("rows", ["1", "16", "64"], "Rows of a batch.")
  PROMPTS = flags.DEFINE_integer("prompts", 128, "Prompts of each count.",
                                 lower_bound=1)
  STEPS = flags.DEFINE_integer("steps", 12, "Steps of each row.",
                               lower_bound=1)
  TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "Temperature.",
                                   lower_bound=0)
  FILE = flags.DEFINE_string("file", "", "Where counts are kept as lines of "
                             "JSON; '' for nowhere.")
  MOST_NODES = flags.DEFINE_integer(
      "most_nodes", 10**6, "Of all rows together: larger trees are left out.",
      lower_bound=1)
  COSTS = flags.DEFINE_list("costs", [], "Of forwards: measured, or files of "
                            "experiments.forward_cycles.")
  FIGURE = flags.DEFINE_string("figure", "", "PNG file to draw; '' for none.")
  launch.run(main)
