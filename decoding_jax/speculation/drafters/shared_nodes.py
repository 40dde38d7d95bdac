"""One budget of nodes for all rows of a batch, spent where most is accepted.

A draft model grows a beam of each row, and the target scores the N nodes of all
rows that are most likely to be accepted. Samples whose probability a verifier
divides by must not be chosen by their tokens: `expected_acceptance` ranks them
before they are drawn, never above their parent or the sibling before; see
docs/exactness.md.
"""

import functools

import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.kernels import buffers
from decoding_jax.speculation import expanders, scoring, tree as tree_lib
from decoding_jax.speculation.drafters import best_first_trees, language_model
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree,
                                Draws, Layout, Seen)
from decoding_jax.validation import values

# Of a flat draft distribution, how often its sample is accepted.
_LEAST = 0.6
# A sample of what its siblings leave is none once one of these is dropped.
_DRAWS = (Draws.ARBITRARY, Draws.PRUNED, Draws.SHARED_NOISE)


@functools.lru_cache(maxsize=None)
def shared(nodes: float, width: int, depth: int, most: int, draws: Draws,
           rank_temperature: float = 1.0) -> Drafter:
  """Makes the drafter of the best nodes of the beams of all rows.

  A step of B rows scores nodes * B nodes, rounded, of beams of `depth` levels
  of `width` nodes; with `Draws.ARBITRARY` a row has at most `most`, D or more.
  `draws` is ARBITRARY, PRUNED or SHARED_NOISE, else a ValueError;
  `rank_temperature` is of `best_first_trees.sharpened`.
  """
  values.check_one_of("draws", draws, dict.fromkeys(_DRAWS))
  drawn = Draws.WITHOUT_REPLACEMENT if draws == Draws.PRUNED else draws
  grown = expanders.beam_tree(width, depth, drawn)
  budget = lambda rows: max(1, min(round(nodes * rows),
                                   min(most, width * depth) * rows))
  if draws == Draws.ARBITRARY:
    layout = tree_lib.free_layout(most, depth, min(width, most))
    propose_nodes = functools.partial(_propose_best, grown, most, budget,
                                      rank_temperature)
    observe = best_first_trees.observe
  else:
    layout, observe = grown.layout, language_model.observe
    propose_nodes = functools.partial(propose, grown, budget,
                                      expected_acceptance)
  return Drafter(layout, language_model.init, propose_nodes,
                 functools.partial(_observe, observe), calls=depth, draws=draws,
                 score=functools.partial(scoring.valid_nodes, budget))


def _observe(observe, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  """Observes, and counts a row's valid nodes instead of the layout's."""
  after = observe(context, before, after, seen)
  nodes = seen.tree.valid[:, 1:].sum(axis=1, dtype=jnp.int32)
  return after.replace(stats=after.stats.replace(
      nodes=before.stats.nodes + jnp.where(before.done, 0, nodes)))


def expected_acceptance(layout: Layout, tree: DraftTree):
  """Returns `[B, M]` log-probabilities of acceptance, before tokens are known.
  A sample of a distribution whose largest probability is m is taken to be
  accepted with probability 1 - 0.4 (1 - m^3), any sibling after it alike: they
  depend on a node's ancestors and the siblings of these alone."""
  largest = jnp.exp(tree.log_probs.max(axis=-1))
  missed = (1 - _LEAST) * (1 - jnp.minimum(largest, 1)**3)
  order = jnp.arange(tree.tokens.shape[1])
  siblings = (tree.parents[:, :, None] == tree.parents[:, None]) & (
      order[None] < order[:, None])[None]
  rank = siblings.sum(axis=-1)
  totals = jnp.zeros(tree.tokens.shape, jnp.float32)[:, :1]
  for level in tree_lib.level_slices(layout)[1:]:
    above, missed_there = (buffers.take_along(x, tree.parents[:, level], axis=1)
                           for x in (totals, missed))
    own = jnp.log1p(-missed_there) + rank[:, level] * jnp.log(
        jnp.maximum(missed_there, 1e-6))
    totals = jnp.concatenate([totals, above + own], axis=1)
  return totals


def choose(scores, number: int):
  """Returns `[B, M]` bool, roots and N nodes of the highest `scores [B, M]`.
  -inf is never chosen, of equal scores the lower index is. With a node its
  parent is chosen, if that has no lower score and no higher index."""
  flat = scores[:, 1:].ravel()
  highest, best = kernels.top_k(flat, number)
  chosen = jnp.zeros(flat.shape, bool).at[best].set(highest > -jnp.inf)
  return jnp.pad(chosen.reshape(len(scores), -1), ((0, 0), (1, 0)),
                 constant_values=True)


def propose(grown, budget, score, keys, context: Context, state: DecodeState):
  """Proposes a beam, in which the nodes of the best scores are valid. `budget`
  is `(B) -> N`, `score` is `(layout, tree) -> [B, M]`."""
  tree, pending = language_model.propose(grown, keys, context, state)
  return _with_best(tree, score(grown.layout, tree), budget, state), pending


def _propose_best(grown, most, budget, rank_temperature, keys,
                  context: Context, state: DecodeState):
  """Proposes the best nodes of each row, of which the best of all are valid."""
  context = best_first_trees.sharpened(context, rank_temperature)
  tree, block = language_model.propose(grown, keys, context, state)
  scores = best_first_trees.path_log_probs(grown.layout, tree)
  kept = best_first_trees.best_nodes(scores, most)
  scores = buffers.take_along(scores, kept, axis=1)
  tree = best_first_trees.subtree(tree, kept)
  return _with_best(tree, scores, budget, state), (block, kept)


def _with_best(tree: DraftTree, scores, budget, state: DecodeState):
  """Returns the tree, in which the nodes chosen among all rows are valid."""
  # A draft at the end of the budget is followed by no token.
  room = jnp.where(state.done, 0, state.limit - state.length - 1)
  fits = tree.valid & (tree_lib.positions(tree) <= room[:, None])
  chosen = choose(jnp.where(fits, scores, -jnp.inf), budget(len(room)))
  return tree.replace(valid=tree.valid & chosen)
