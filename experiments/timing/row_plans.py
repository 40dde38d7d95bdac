"""Predicts what one budget of nodes for all rows of a batch would do.

How many nodes a step should score depends on the rows: of one row nearly all
are free on an accelerator, of 64 rows each one is paid for. So budgets of all
sizes are predicted, from forwards of packed tokens that are timed at this
number of rows and from texts of the target; `auto_method` tries the best.
"""

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from experiments.app import method_specs
from experiments.timing import forward_cost

NAME = "shared_budget"
# Of the beams; nodes of a row on average; tokens of a row that are timed.
_WIDTH = 4
_DEPTHS = (2, 4, 7)
_NODES = (0.5, 1, 2, 3, 4, 6, 8, 12)
_TOKENS = (1.5, 3, 5, 9, 13)


def applies(pair, batch) -> bool:
  """Returns whether B rows may share a budget, and texts say what it does."""
  return batch > 1 and pair.target.packs and isinstance(pair.draft,
                                                        dj.LanguageModel)


def curve(pair, batch, live, slots) -> forward_cost.Curve:
  """Times forwards of packed tokens; see `forward_cost.measure`."""
  return forward_cost.measure(
      pair.target, pair.target_params, batch, live, slots, _TOKENS,
      room=lambda tokens: 1 + _most(_spec(tokens - 1, _DEPTHS[-1])))


def plans(texts, costs, batch):
  """Yields plans of all sizes and depths; rates are of a row.

  Args:
    texts: of `text_estimates.Text`, with draft distributions.
    costs: `tree_planning.Costs`, of the target by packed tokens of a row.
    batch: B.
  """
  for depth in _DEPTHS:
    beams = _beams(texts, _WIDTH, depth)
    for nodes in _NODES:
      if round(nodes * batch) and nodes <= _WIDTH * depth:
        spec = _spec(nodes, depth)
        tokens = shared_tokens(*beams, _most(spec), batch, nodes)
        seconds = tree_planning.step_seconds(costs, (_WIDTH,) * depth, nodes)
        yield tree_planning.Plan(spec, tokens, seconds, tokens / seconds)


def _spec(nodes, depth):
  return {"name": NAME, "nodes": nodes, "width": _WIDTH, "depth": depth}


def _most(spec):
  """Returns the nodes of a row, at most."""
  return tree.num_nodes(method_specs.read(spec).greedy.drafter.layout)


def shared_tokens(probs, hits, most, rows, nodes) -> float:
  """Returns the tokens of a step and row.

  Args:
    probs: `[n, W D]`, of the path to each node of the beams of n positions,
      which are put together as rows at random.
    hits: `[n, W D]` bool, whether the text goes there.
    most: nodes of a row, at most.
    rows: B.
    nodes: of a row, on average.
  """
  rows = min(rows, len(probs))
  if not rows:
    return 1.0
  order = np.random.default_rng(0).permutation(len(probs))
  order = order[:len(order) // rows * rows]
  best = _largest(probs, min(most, probs.shape[1]))
  probs, hits = (np.take_along_axis(x, best, axis=1)[order].reshape(
      -1, rows * best.shape[1]) for x in (probs, hits))
  chosen = _largest(probs, min(round(nodes * rows), probs.shape[1]))
  return 1 + np.take_along_axis(hits, chosen, axis=1).sum() / len(order)


def _beams(texts, width, depth):
  """Grows beams from all positions; returns `probs` and `hits` of them.

  What the draft would say after other tokens than those of a text is not known:
  what it says at the same depth of the text is taken instead.
  """
  # `shared_budget` ranks at half the temperature of a greedy target.
  power = 2 if all((x.target.max(axis=1) == 1).all() for x in texts) else 1
  return tuple(map(np.concatenate, zip(*(
      _beam(x.draft, x.tokens[x.start:], width, depth, power)
      for x in texts))))


def _beam(draft, tokens, width, depth, power):
  probs = np.maximum(draft.astype(np.float64), 1e-300)**power
  best = _largest(probs, min(width, probs.shape[1]))
  right = best == tokens[:len(probs), None]
  probs = np.take_along_axis(probs, best, axis=1) / probs.sum(
      axis=1, keepdims=True)
  count = max(len(probs) - depth + 1, 0)
  total, hit, levels = np.ones((count, 1)), np.ones((count, 1), bool), []
  for level in range(depth):
    grow = lambda above, own: (above[:, :, None] * own[:, None]).reshape(
        count, above.shape[1] * own.shape[1])
    total, hit = (grow(above, own[level:level + count])
                  for above, own in ((total, probs), (hit, right)))
    kept = _largest(total, min(width, total.shape[1]))
    total, hit = (np.take_along_axis(x, kept, axis=1) for x in (total, hit))
    levels.append((total, hit))
  return [np.concatenate(x, axis=1) for x in zip(*levels)]


def _largest(values, count):
  """Returns `[n, count]`, where the largest of each row are."""
  return np.argpartition(-values, count - 1, axis=1)[:, :count]
