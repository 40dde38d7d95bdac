"""Bounds of the acceptance that a method could have had in its own runs.

Some texts are decoded again, step by step, so that the nodes are known at which
children were tested; both models' distributions there give the best acceptance
of any rule, see `acceptance_bounds`.
"""

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import acceptance_bounds
from decoding_jax.speculation import tree
from experiments.devices import model_pair
from experiments.scoring import text_distributions

# Nodes of a level that are looked at, at most; of several children less, since
# that takes longer.
_NODES = 1000
_WIDE_NODES = 128
# By how the children of a node are drawn.
_BOUNDS = {
    dj.Draws.ARBITRARY: acceptance_bounds.top_k,
    dj.Draws.WITHOUT_REPLACEMENT: acceptance_bounds.without_replacement,
    dj.Draws.WITH_REPLACEMENT: acceptance_bounds.with_replacement,
    dj.Draws.PRUNED: acceptance_bounds.without_replacement,
    dj.Draws.ONE_SAMPLED: acceptance_bounds.greedy_and_sample,
    dj.Draws.ONE_IN_BEAM: acceptance_bounds.greedy_and_sample,
    dj.Draws.SHARED_NOISE: acceptance_bounds.without_replacement}


def by_depth(pair, method, sampling, batches, prompts, draft_sampling=None,
             **arguments) -> list:
  """Returns the mean bound at the nodes of each level where it was tested.

  Args:
    pair: a `ModelPair` with parameters.
    method: a `dj.Method`.
    sampling: a `dj.Sampling`.
    batches: list of (keys, prompts, lengths), as of
      `evaluation.run.make_batches`; the first ones are decoded. With the shape
      and arguments of a generation before nothing is compiled again.
    prompts: how many of their rows are looked at.
    draft_sampling: a `dj.Sampling`; None: as `sampling`.
    **arguments: further ones of `dj.stream`.

  Returns:
    `[D]`: of the children of the root, of those of level 1, and so on; NaN
    where there is no such bound, or where no node was tested. Below the root
    there is none for rules that verify paths as a whole, nor for nodes whose
    numbers of children depend on the draft; nothing of methods without a tree.
  """
  if not isinstance(method.sampled, dj.Pair):
    return []
  drafter, verifier = method.sampled
  counts = _children(drafter, verifier)
  if not any(counts) or pair.mesh is not None or not sampling.temperature:
    return [np.nan] * tree.depth(drafter.layout)
  arguments |= {"sampling": sampling, "draft_sampling": draft_sampling}
  rows = list(_rows(pair, method, batches, prompts, arguments))
  rng = np.random.default_rng(0)
  found = []
  for level, count in enumerate(counts):
    places = _places([x for x, _ in rows], level,
                     _NODES if count == 1 else _WIDE_NODES, rng)
    if not count or not sum(map(len, places)):
      found.append(np.nan)
      continue
    target, draft = (
        text_distributions.at(lm, params, warp, [x for _, x in rows], places)
        for lm, params, warp in (
            (pair.target, pair.target_params, sampling),
            (pair.draft, pair.draft_params, draft_sampling or sampling)))
    found.append(float(
        _BOUNDS[drafter.draws](target, draft, count)[:, -1].mean()))
  return found


def _children(drafter, verifier):
  """Returns the children of a node of each level; 0 where they vary."""
  layout = drafter.layout
  unknown = [0] * tree.depth(layout)
  if not isinstance(layout, dj.Layout) or not layout.widths or (
      not drafter.calls):
    return unknown
  beam = layout.branching == layout.widths and max(layout.widths) > 1 and (
      not layout.children)
  by_node = verifier.walk is None or (
      drafter.draws == dj.Draws.SHARED_NOISE)
  if beam or layout.children or not by_node:
    # A root has all nodes of the first level.
    return [layout.widths[0], *unknown[1:]]
  return list(layout.branching)


def _rows(pair, method, batches, prompts, arguments):
  """Yields, of each row, its lengths after each step `[S + 1]` and its text."""
  pair = model_pair.for_method(pair, method)
  for keys, texts, starts in batches:
    lengths = [np.asarray(starts)]
    for out in dj.stream(keys, texts, starts, method=method,
                         target=pair.target, target_params=pair.target_params,
                         draft=pair.draft, draft_params=pair.draft_params,
                         **arguments):
      lengths.append(out.lengths)
    found = list(zip(np.stack(lengths, axis=1), out.tokens))[:prompts]
    yield from found
    prompts -= len(found)
    if prompts <= 0:
      return


def _places(lengths, level, most, rng):
  """Returns, of each row, the lengths of texts that end in a tested node.

  A step that adds n tokens has accepted n - 1: at the nodes of levels 0 to n -
  1 on its path children were tested.
  """
  found = [(row, steps[i] + level) for row, steps in enumerate(lengths)
           for i in np.flatnonzero(np.diff(steps) > level)]
  chosen = [found[i] for i in rng.permutation(len(found))[:most]]
  return [np.array([place for row, place in chosen if row == i], int)
          for i in range(len(lengths))]
