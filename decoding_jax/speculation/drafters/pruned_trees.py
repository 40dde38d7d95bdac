"""ProPD (arXiv 2402.13485, section 4.1): early layers prune a drafted tree.

What the first layers of the target say of a tree costs a part of a target call,
and shows which of its branches are in vain. Of a tree of a static size those
nodes are kept whose paths these layers find the most probable ones, and they
alone are scored by all layers.

The paper prunes within the target's forward. Here a forward has one shape: the
first layers run twice for the nodes that are kept, the first time as a call of
the draft.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.speculation import expanders, tree as tree_lib
from decoding_jax.speculation.drafters import best_first_trees, language_model
from decoding_jax.types import Context, DecodeState, Drafter, DraftTree


@functools.lru_cache(maxsize=None)
def propd(branching: tuple[int, ...], nodes: int, layers: int) -> Drafter:
  """Makes the drafter; arguments are those of `methods.propd`."""
  grown = expanders.top_k(branching)
  layout = tree_lib.free_layout(nodes, len(branching), max(branching))
  return Drafter(
      layout, language_model.init,
      functools.partial(_propose, grown, nodes, layers),
      best_first_trees.observe, calls=len(branching) + 1,
      head_calls=lambda head: head.forwards(len(branching)) + 1)


def _propose(grown, nodes, layers, keys, context: Context,
             state: DecodeState):
  """The pruned tree, the draft block, and which of the nodes are kept."""
  tree, block = language_model.propose(grown, keys, context, state)
  scored = tree
  if context.target.early_logits:
    with jax.named_scope("early_forward"):
      scored = _by_early_layers(layers, context, state, tree)
  kept = best_first_trees.best_nodes(
      best_first_trees.path_log_probs(grown.layout, scored), nodes)
  return best_first_trees.subtree(tree, kept), (block, kept)


def _by_early_layers(layers, context: Context, state: DecodeState,
                     tree: DraftTree) -> DraftTree:
  """The tree with log-probabilities of the target's first layers."""
  positions = (state.length - 1)[:, None] + tree_lib.positions(tree)
  logits = context.target.early_logits(
      layers, context.target_params, tree.tokens, positions,
      state.target_cache, tree.mask)[:, :tree.log_probs.shape[1]]
  return tree.replace(
      log_probs=jax.nn.log_softmax(logits.astype(jnp.float32)))
