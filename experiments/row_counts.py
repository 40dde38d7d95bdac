"""Tokens a target call by how many rows are decoded together.

  python -m experiments.row_counts --rows=16 --methods="speculative(6)" \\
      --methods="shared_budget(6, 4, 8)"

All rows run from the first to the last of `--steps` steps: they begin together,
and their texts could be longer. So what is counted is what a full batch does,
as in continuous batching, and not how one ends. Prompts are held-out source of
Python; the interval is of 95 %, over prompts. Trees that do not depend on other
rows are counted once.

`--costs=measured,cycles.jsonl` adds tokens in the time of a step of plain
decoding: forwards of a step are timed on this device, in turn, or have the
cycles of the target that `experiments.forward_cycles --file` saved, without a
drafter. What a step does besides is left out.
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
from experiments.evaluation import results_store
from experiments.timing import row_costs

# Of a prompt, and of the module after it at least.
_TOKENS = 64, 128
_HEADER = "rows", "method", "tokens a call", "nodes a call"
# Of a cache whose forwards are timed: tokens of a row, and slots.
_LIVE, _SLOTS, _MEASURED = 96, 256, "measured"


def main():
  methods = {spec: method_specs.read(spec, "--methods")
             for spec in METHODS.value}
  rows = launch.numbers(ROWS)
  if any(PROMPTS.value % n for n in rows):
    raise launch.UserError(f"--prompts={PROMPTS.value}: a multiple of --rows="
                           f"{','.join(ROWS.value)} is needed.")
  pair = model_pair.with_params(model_pair.open_pair(
      TARGET.value, DRAFT.value, "float32", "float32", "dtype", "dtype"))
  lines, known = [(*_HEADER, *(f"rate, {name}" for name in COSTS.value))], {}
  for n in rows:
    steps = {spec: row_costs.forwards(spec, method, n)
             for spec, method in methods.items()} if COSTS.value else {}
    costs = [_costs(name, pair, n, steps) for name in COSTS.value]
    for spec, method in methods.items():
      shared = (method.sampled or method.greedy).drafter.budget
      key = spec, n if shared else max(rows)
      if key not in known:
        known[key] = count(method, pair, key[1], PROMPTS.value, STEPS.value,
                           TEMPERATURE.value)
      tokens, nodes = known[key]
      error = 1.96 * tokens.std() / len(tokens)**0.5
      lines.append((str(n), method.name, f"{tokens.mean():.2f}±{error:.2f}",
                    f"{nodes:.2f}", *(f"{tokens.mean() / of[spec]:.2f}"
                                      for of in costs)))
  print(text_tables.markdown("", lines))


def _costs(name, pair, rows, steps):
  """Returns the cost of a step of each method, plain = 1."""
  kinds = list(dict.fromkeys([row_costs.PLAIN, *sum(steps.values(), [])]))
  costs = (row_costs.timed(pair, _LIVE, _SLOTS, rows, kinds)
           if name == _MEASURED else
           row_costs.saved(results_store.read(
               pathlib.Path(name), "rows", "tokens", "room", "cycles"), rows,
                           kinds))
  return {spec: sum(map(costs.get, forwards)) / costs[row_costs.PLAIN]
          for spec, forwards in steps.items()}


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
  COSTS = flags.DEFINE_list("costs", [], "Of forwards: measured, or files of "
                            "experiments.forward_cycles.")
  launch.run(main)
