"""ProPD (arXiv 2402.13485, section 4.1): early layers prune a drafted tree.

Only nodes with the most probable paths after the first layers are scored by all
layers. The first layers run once if the target has `LanguageModel.halves` of
its forward; on a mesh, with a logits processor or while other rows read their
prompts, they run again.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.speculation import expanders, scoring, tree as tree_lib
from decoding_jax.speculation.drafters import best_first_trees, language_model
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree, Head,
                                Seen)


@functools.lru_cache(maxsize=None)
def propd(branching: tuple[int, ...], nodes: int, layers: int) -> Drafter:
  """Makes the drafter of `methods.propd`, with its arguments."""
  grown = expanders.top_k(branching)
  layout = tree_lib.free_layout(nodes, len(branching), max(branching))
  return Drafter(
      layout, language_model.init,
      functools.partial(_propose, grown, nodes, layers),
      _observe, calls=len(branching) + 1,
      score=functools.partial(_score, layers),
      draft_calls=lambda draft: 1 + (
          draft.forwards(len(branching)) if isinstance(draft, Head)
          else len(branching)))


def _propose(grown, nodes, layers, keys, context: Context,
             state: DecodeState):
  """The pruned tree; the draft block, which nodes are kept, the early block."""
  tree, block = language_model.propose(grown, keys, context, state)
  scored, early = tree, None
  if context.target.halves:
    with jax.named_scope("early_forward"):
      scored, early = _by_early_layers(layers, context, state, tree)
  kept = best_first_trees.best_nodes(
      best_first_trees.path_log_probs(grown.layout, scored), nodes)
  return best_first_trees.subtree(tree, kept), (block, kept, early)


def _by_early_layers(layers, context: Context, state: DecodeState,
                     tree: DraftTree):
  """The tree with log-probabilities of the first layers, and their block."""
  positions = (state.length - 1)[:, None] + tree_lib.positions(tree)
  logits, early = context.target.halves.early(
      layers, context.target_params, tree.tokens, positions,
      state.target_cache, tree.mask)
  logits = logits[:, :tree.log_probs.shape[1]].astype(jnp.float32)
  return tree.replace(log_probs=jax.nn.log_softmax(logits)), early


def _score(layers, context: Context, state: DecodeState, tree: DraftTree,
           pending):
  """Goes on from what the first layers have computed, if there is any."""
  _, kept, early = pending
  halves = context.target.halves
  if halves is None or halves.forward is not context.target.forward or (
      layers >= halves.num_layers):
    return scoring.all_nodes(context, state, tree)
  return halves.late(
      layers, context.target_params, cache_lib.take_slots(early, kept),
      (state.length - 1)[:, None] + tree_lib.positions(tree),
      state.target_cache, tree.mask)


def _observe(context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  return best_first_trees.observe(
      context, before, after, seen.replace(pending=seen.pending[:2]))
