"""Chooses one of several trees at each step, by what was accepted before.

All drafters are compiled into one step, and `lax.switch` runs one of them for
all rows, and the target on its nodes alone:

    step                1                2            3
    tree                o - o - o        o - o - o    o - o - o - o - o - o
    accepted                2                2                    4

The choice is made from earlier steps, before a token is drawn: exact for the
same reason as any fixed tree, see docs/exactness.md.
"""

import functools
from typing import Any, Callable

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import expanders, scoring, shared_noise
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Array, Context, DecodeState, Drafter, Draws,
                                DraftTree, Layout, NONE, Seen)
from decoding_jax.validation import memory

# The acceptance rate that a row begins with; it weighs as much as a test in
# each step of the horizon.
_RATE = 0.7
# What a node adds to a forward of one token: of 16 on a CPU, a third.
_NODE = 0.02


@flax.struct.dataclass
class History:
  """What was accepted of a row's drafts; `DecodeState.carry`."""
  drafter: Any  # The carry of the drafters, which all of them keep alike
  accepted: Array  # `[B]` float32, first siblings that were accepted, and
  tested: Array  # `[B]` float32, tested; both weigh less with every step


@functools.lru_cache(maxsize=None)
def adaptive(drafters: tuple[Drafter, ...], horizon: int,
             choose: Callable[..., Array]) -> Drafter:
  """Makes the drafter that proposes the tree of one of several drafters a step.

  Args:
    drafters: of `drafters.of_model`, drawn in one way.
    horizon: steps after which an outcome has lost 63 % of its weight.
    choose: `(context, state) -> [] int32`, the drafter of all rows, from what
      was committed; `state.carry` is a `History`. A choice that depends on the
      tokens which this step draws changes the distribution of the text.
  """
  layouts = [drafter.layout for drafter in drafters]
  layout = tree_lib.free_layout(*(max(map(size, layouts)) for size in (
      tree_lib.num_nodes, tree_lib.depth, tree_lib.max_branching)))
  return Drafter(
      layout, functools.partial(_init, drafters),
      functools.partial(_propose, drafters, layout, choose),
      functools.partial(_observe, drafters, horizon),
      calls=max(drafter.calls for drafter in drafters),
      draws=drafters[0].draws, score=functools.partial(
          _score, [1 + tree_lib.num_nodes(layout) for layout in layouts]))


def by_acceptance(drafters: tuple[Drafter, ...], horizon: int,
                  costs: tuple[float, ...] | None, context: Context,
                  state: DecodeState) -> Array:
  """Chooses the tree of the most expected tokens of all rows for its cost."""
  history = state.carry
  rate = (history.accepted + _RATE * horizon) / (history.tested + horizon)
  tokens = jnp.stack([expected_tokens(x.layout, rate) for x in drafters])
  costs = costs or [predicted_cost(context, x) for x in drafters]
  total = jnp.where(state.done, 0, tokens).sum(axis=1)
  return jnp.argmax(total / jnp.asarray(costs, jnp.float32)).astype(jnp.int32)


def expected_tokens(layout: Layout, rate) -> Array:
  """Returns the tokens that a step emits, where `rate` of first siblings are
  accepted. Of later ones half as many are; a level's nodes are spread evenly
  below the level above: `rate=0.8`, a chain of 2: 1 + 0.8 + 0.64."""
  tokens = reached = jnp.ones_like(rate)
  for above, width in zip((1, *layout.widths), layout.widths):
    later = max(width / above, 1) - 1
    reached *= 1 - (1 - rate) * (1 - rate / 2)**later
    tokens += reached
  return tokens


def predicted_cost(context: Context, drafter: Drafter) -> float:
  """Returns the time of a step by that of a target forward of one token. A
  forward of the drafter takes as long as to read its parameters."""
  draft = memory.size(context.draft_params) / max(
      memory.size(context.target_params), 1)
  return (1 + _NODE * tree_lib.num_nodes(drafter.layout)
          + draft * language_model.draft_calls(drafter, context.draft))


def _init(drafters, context: Context, state: DecodeState) -> DecodeState:
  state = drafters[0].init(context, state)
  none = jnp.zeros(len(state.length), jnp.float32)
  steps = jnp.zeros((len(none), len(drafters)), jnp.int32)
  # An estimate of the memory of a carry has no counts.
  stats = state.stats and state.stats.replace(
      extra={**state.stats.extra, "steps_by_tree": steps})
  return state.replace(carry=History(state.carry, none, none), stats=stats)


def _propose(drafters, layout, choose, keys, context: Context,
             state: DecodeState):
  """The tree, padded to the largest; which one it is, and the draft block."""
  index = choose(context, state)
  own = state.replace(carry=state.carry.drafter)
  inner = max(expanders.inner_nodes(drafter.layout) for drafter in drafters)

  def propose(drafter):
    tree, block = drafter.propose(keys, context, own)
    nodes = 1 + layout.nodes
    mask = _padded(_padded(tree.mask, nodes, 1), nodes, 2)
    tree = DraftTree(
        _padded(tree.tokens, nodes), _padded(tree.parents, nodes, value=NONE),
        _padded(tree.valid, nodes), mask, _padded(tree.log_probs, inner))
    return tree, block and cache_lib.map_arrays(
        lambda x, _, axis: _padded(x, 1 + inner, axis), block)

  tree, block = jax.lax.switch(index, [functools.partial(propose, drafter)
                                       for drafter in drafters])
  if drafters[0].draws == Draws.SHARED_NOISE:
    tree = tree.replace(noise_keys=shared_noise.noise_keys(
        state.keys, state.length, layout.depth))
  return tree, (index, block)


def _padded(x, size, axis=1, value=0):
  widths = [(0, 0)] * x.ndim
  widths[axis] = 0, size - x.shape[axis]
  return jnp.pad(x, widths, constant_values=value)


def _score(sizes, context: Context, state: DecodeState, tree: DraftTree,
           pending):
  """Scores the nodes of the tree that was chosen."""
  return jax.lax.switch(pending[0], [functools.partial(
      scoring.first_alone, size, context, state) for size in sizes], tree)


def _observe(drafters, horizon, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  """Has the drafters observe, and counts what was accepted."""
  index, block = seen.pending
  history, verdict = before.carry, seen.verdict
  # The draft block lacks the last level of the tree that was chosen.
  depth = _of_chosen(index, drafters, lambda x: tree_lib.depth(x.layout))
  grown = jnp.where(jnp.arange(verdict.path.shape[1])[None] < depth,
                    verdict.path, NONE)
  after = language_model.observe(
      context, before, after.replace(carry=history.drafter),
      seen.replace(pending=block), grown)

  def decayed(old, hits):
    new = (1 - 1 / horizon) * old + hits.sum(axis=1, dtype=jnp.float32)
    return jnp.where(before.done, old, new)

  return after.replace(
      stats=_counted(drafters, index, context, before, after.stats),
      carry=History(after.carry,
                    decayed(history.accepted, verdict.ranks == 0),
                    decayed(history.tested, verdict.num_children > 0)))


def _of_chosen(index, drafters, size):
  return jnp.array([size(drafter) for drafter in drafters], jnp.int32)[index]


def _counted(drafters, index, context: Context, before: DecodeState, stats):
  """Returns counts of the tree that was chosen instead of the largest."""
  runs = (~before.done).astype(jnp.int32)
  nodes = _of_chosen(index, drafters, lambda x: tree_lib.num_nodes(x.layout))
  calls = _of_chosen(index, drafters, lambda x: language_model.draft_calls(
      x, context.draft))
  stats = stats.replace(nodes=before.stats.nodes,
                        draft_calls=before.stats.draft_calls)
  is_chosen = (jnp.arange(len(drafters)) == index).astype(jnp.int32)
  return stats.add(nodes=runs * nodes, draft_calls=runs * calls,
                   steps_by_tree=runs[:, None] * is_chosen[None])
