"""Several drafters at once, whose trees are merged into one.

SpecInfer (arXiv 2305.09781, section 3.2). Nodes of the same text become one;
duplicates are scored, since shapes are static, but not tested:

    drafter 1    a - b          of both    a - b, c
    drafter 2    a - c, d                  d

The children are no samples of one distribution, so `verifiers.sample_and_match`
and `match` verify them.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.runtime import cache as cache_lib, greedy_rollout
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import scoring, tree as tree_lib
from decoding_jax.speculation.drafters import feature_head, language_model
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree, Head,
                                NONE, Seen, has_cache)
from decoding_jax.validation import protocols


@functools.lru_cache(maxsize=None)
def merged(*drafters: Drafter) -> Drafter:
  """Makes the drafter that proposes the trees of several drafters as one.

  Siblings are tested in the order of the drafters. A language model must be
  `dj.generate`'s draft model; its cache is its only state, and it reads the
  accepted path again, one more forward a step. Heads read committed tokens
  anyway.

  `draft_params` are the draft model's, and other drafters begin empty; without
  a draft model they are a tuple of initial states, or None, of each drafter.
  Raises ValueError for fewer than two drafters.
  """
  if len(drafters) < 2:
    raise ValueError(f"{len(drafters)} drafters: two or more are needed.")
  for drafter in drafters:
    protocols.check("drafter", Drafter, drafter)
  layouts = [drafter.layout for drafter in drafters]
  calls = sum(drafter.calls for drafter in drafters)
  layout = tree_lib.free_layout(
      sum(map(tree_lib.num_nodes, layouts)), max(map(tree_lib.depth, layouts)),
      sum(map(tree_lib.max_branching, layouts)))
  return Drafter(layout, functools.partial(_init, drafters),
                 functools.partial(_propose, drafters),
                 functools.partial(_observe, drafters), calls + bool(calls),
                 score=scoring.root_unless_drafted if all(
                     drafter.score is scoring.root_unless_drafted
                     for drafter in drafters) else None,
                 draft_calls=functools.partial(_draft_calls, drafters))


def _draft_calls(drafters, draft):
  """Sums the calls of all; a model reads once more what was committed."""
  calls = sum(language_model.draft_calls(drafter, draft)
              for drafter in drafters if drafter.calls)
  return calls + (calls > 0 and not isinstance(draft, Head))


def join(trees) -> tuple[DraftTree, jax.Array]:
  """Joins trees of the same roots, the nodes of the first one in front. Returns
  the tree, and `[B, M]` int32, for each node the one that is tested for its
  text: itself or an earlier twin."""
  root = trees[0]
  tokens, valid = (jnp.concatenate([x[:, :1], *(y[:, 1:] for y in ys)], axis=1)
                   for x, ys in ((root.tokens, [t.tokens for t in trees]),
                                 (root.valid, [t.valid for t in trees])))
  size, at = tokens.shape[1], 1
  parents = [root.parents[:, :1]]
  mask = jnp.zeros((*tokens.shape, size), bool).at[:, 0, 0].set(True)
  for tree in trees:
    end = at + tree.tokens.shape[1] - 1
    above = tree.parents[:, 1:]
    parents.append(jnp.where(above > 0, above + at - 1, 0))
    mask = mask.at[:, at:end, 0].set(tree.mask[:, 1:, 0])
    mask = mask.at[:, at:end, at:end].set(tree.mask[:, 1:, 1:])
    at = end
  first, parents = jax.vmap(_first_of_each_text)(
      tokens, jnp.concatenate(parents, axis=1), valid)
  valid &= first == jnp.arange(size, dtype=jnp.int32)[None]
  tree = tree_lib.from_parents(tokens, parents, valid)
  # Nodes that are not tested see what they saw; twins have the same logits.
  return tree.replace(mask=jnp.where(tree.valid[:, :, None], tree.mask,
                                     mask)), first


def _first_of_each_text(tokens, parents, valid):
  """Returns `[M]` the first node of each text, and parents among these."""
  order = jnp.arange(len(tokens), dtype=jnp.int32)

  def visit(node, carry):
    first, parents = carry
    above = first[jnp.maximum(parents[node], 0)]
    same = ((tokens == tokens[node]) & (parents == above) & valid
            & (order < node) & (order > 0))
    twin = jnp.where(same.any() & valid[node], jnp.argmax(same), node)
    # Nodes that are not tested are no children and take no rank.
    tested = valid[node] & (twin == node)
    return (first.at[node].set(twin.astype(jnp.int32)),
            parents.at[node].set(jnp.where(tested, above, NONE)))

  return jax.lax.fori_loop(1, len(tokens), visit, (order, parents))


def _contexts(drafters, context: Context):
  """Returns what each drafter sees: only those with a model see the model."""
  params = context.draft_params
  if any(drafter.calls for drafter in drafters):
    return [context if drafter.calls else
            context.replace(draft=None, draft_params=None)
            for drafter in drafters]
  params = (None,) * len(drafters) if params is None else params
  if not isinstance(params, tuple) or len(params) != len(drafters):
    raise ValueError(f"draft_params is of type {type(params).__name__}: None "
                     f"or a tuple of {len(drafters)}, one for each of the "
                     "drafters that are merged, is needed.")
  return [context.replace(draft_params=own) for own in params]


def _init(drafters, context: Context, state: DecodeState) -> DecodeState:
  carries = []
  for drafter, own in zip(drafters, _contexts(drafters, context)):
    state = drafter.init(own, state.replace(carry=None))
    if drafter.calls and state.carry is not None and (
        not isinstance(context.draft, Head)):
      raise ValueError("A drafter that carries more than the cache of a draft "
                       "model cannot be merged with others.")
    carries.append(state.carry)
  return state.replace(carry=tuple(carries))


def _propose(drafters, keys, context: Context, state: DecodeState):
  """The tree; and what each drafter has proposed, and which nodes are one."""
  keys = jax.vmap(lambda key: random.split(key, len(drafters)),
                  out_axes=1)(keys)
  proposals = [drafter.propose(key, own, state.replace(carry=carry))
               for drafter, key, own, carry in zip(
               drafters, keys, _contexts(drafters, context), state.carry)]
  tree, first = join([tree for tree, _ in proposals])
  return tree, (proposals, first)


def _observe(drafters, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  """Tells each drafter what the target said of its own nodes."""
  proposals, first = seen.pending
  carries, at = [], 1
  for drafter, own, carry, (tree, pending) in zip(
      drafters, _contexts(drafters, context), before.carry, proposals):
    end = at + tree.tokens.shape[1] - 1
    own_seen = _part(seen, drafter.layout, tree, pending, first, at, end)
    if not drafter.calls:
      carry = drafter.observe(own, before.replace(carry=carry),
                              after.replace(carry=carry), own_seen).carry
    elif isinstance(context.draft, Head):
      # It reads the whole path, whoever has drafted it.
      carry = feature_head.observe(context, after.replace(carry=carry),
                                   seen).carry
    carries.append(carry)
    at = end
  after = after.replace(carry=tuple(carries))
  if not any(drafter.calls for drafter in drafters) or not has_cache(
      context.draft):
    return after
  read = jnp.concatenate([token_buffer.newest(before, 1),
                          seen.tokens[:, :-1]], axis=1)
  _, cache = greedy_rollout.extend(context.draft, context.draft_params,
                                   before.draft_cache, read, seen.count)
  return after.replace(draft_cache=cache)


def _part(seen: Seen, layout, tree, pending, first, at, end) -> Seen:
  """Returns what one drafter sees, with nodes `at` to `end`. The path is
  the accepted one as far as its nodes are the drafter's, or of the same texts;
  tokens and count are those that were committed."""
  nodes = jnp.array([0, *range(at, end)], jnp.int32)
  block = cache_lib.map_arrays(
      lambda x, _, slot_axis: jnp.take(x, nodes, slot_axis), seen.block)
  depth, verdict = tree_lib.depth(layout), seen.verdict
  own = first[:, None, nodes] == verdict.path[:, :, None]
  order = jnp.arange(verdict.path.shape[1], dtype=jnp.int32)[None]
  inside = own.any(axis=-1) & (order <= verdict.num_accepted[:, None])
  length = jnp.cumprod(inside.astype(jnp.int32), axis=1).sum(
      axis=1, dtype=jnp.int32) - 1
  path = jnp.take_along_axis(jnp.argmax(own, axis=-1).astype(jnp.int32),
                             jnp.minimum(order, length[:, None]), axis=1)
  verdict = verdict.replace(
      path=path[:, :depth + 1], num_accepted=length,
      ranks=verdict.ranks[:, :depth],
      num_children=verdict.num_children[:, :depth])
  return Seen(tree, seen.logits[:, nodes], block, verdict, seen.tokens,
              seen.count, pending)
