"""The drafter that asks a model or a head for each level of its tree."""

import functools

import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import expanders, shared_noise
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.drafters import feature_head
from decoding_jax.types import (Block, Cache, Context, DecodeState, Drafter,
                                DraftTree, Expander, Head, HIDDEN_STATES,
                                LanguageModel, NONE, Seen, has_cache,
                                num_models)


@functools.lru_cache(maxsize=None)
def of_model(expander: Expander) -> Drafter:
  """Makes the drafter of `dj.generate`'s draft model or head. Its state is the
  draft model's cache, `DecodeState.draft_cache`, or what a head has read,
  `DecodeState.carry`; a model that reads the target's cache has none."""
  depth = tree_lib.depth(expander.layout)
  return Drafter(
      expander.layout, init, functools.partial(propose, expander), observe,
      calls=depth, draws=expander.draws,
      draft_calls=own_cache(depth, expander.num_models)
      if expander.num_models > 1 else None)


def draft_calls(drafter: Drafter, draft: LanguageModel | Head | None) -> int:
  """Returns the forwards a step of a draft; ValueError if it cannot be used."""
  if drafter.draft_calls:
    return drafter.draft_calls(draft)
  if isinstance(draft, Head) and drafter.calls:
    return draft.forwards(tree_lib.depth(drafter.layout))
  return drafter.calls


def own_cache(calls: int, models: int = 1):
  """Makes a `Drafter.draft_calls` of as many models, each with a cache."""
  def calls_of(draft):
    check_own_cache(draft)
    if models > 1 and num_models(draft) != models:
      raise ValueError(
          f"draft is of {num_models(draft)} model(s): the method needs "
          f"{models}, as guided.mixture joins them, or --draft with commas.")
    return calls

  return calls_of


def check_own_cache(draft: LanguageModel | Head):
  """Raises a ValueError for what drafts from what the target has computed."""
  if isinstance(draft, Head):
    raise ValueError("draft is a head, which drafts from what the target has "
                     "computed: the method needs a language model.")
  if not has_cache(draft):
    raise ValueError("draft reads the target's cache, and has none of its own: "
                     "the method needs a draft model that has.")


def init(context: Context, state: DecodeState) -> DecodeState:
  """Does `Drafter.init`; a draft model is prefilled as the target is."""
  return (feature_head.init(context, state)
          if isinstance(context.draft, Head) else state)


def propose(expander, keys, context: Context,
            state: DecodeState) -> tuple[DraftTree, Block | None]:
  """Does `Drafter.propose` with the block of a draft model."""
  if isinstance(context.draft, Head):
    return feature_head.propose(expander, keys, context, state)
  model, cache = context.draft, state.draft_cache
  if _reads_target(context):
    # Without what heads read: the draft model makes none.
    cache = state.target_cache.replace(features={
        name: x for name, x in state.target_cache.features.items()
        if name != HIDDEN_STATES})
    model = _on_target(model, cache)
  return expanders.grow(
      keys, expander, model, context.draft_params, cache,
      token_buffer.newest(state, 2), state.length, context.draft_warper,
      shared_noise.keys_for(expander, state))


def observe(context: Context, before: DecodeState, after: DecodeState,
            seen: Seen, grown=None) -> DecodeState:
  """Commits the path of a draft model, or has a head read it. `grown [B, D +
  1]` are nodes of the path in the tree of `propose`, if that is not the tree
  that was scored; `NONE` for a last node that is not in the block."""
  if isinstance(context.draft, Head):
    return feature_head.observe(context, after, seen)
  if _reads_target(context):
    return after
  path, count = seen.verdict.path, seen.count
  if grown is not None:
    # Without its last node the cache falls one token short.
    known = jnp.cumprod(grown != NONE, axis=1).sum(axis=1, dtype=jnp.int32)
    path, count = grown, jnp.minimum(count, known)
  return after.replace(draft_cache=commit(before, seen.pending, path, count))


def _on_target(model, cache):
  """Returns the model on a view of the target's cache, made once a tree."""
  view = model.target_view(cache)

  def forward(params, tokens, positions, cache, *block):
    del cache  # The same, of which it sees the view.
    return model.forward(params, tokens, positions, view, *block)

  return model._replace(forward=forward)


def _reads_target(context):
  return context.draft is not None and context.draft.target_view is not None


def commit(state: DecodeState, block: Block | None, path,
           count) -> Cache | None:
  """Commits the late token, if there is one, the root, and inner nodes. Nodes
  of the last level are not in the block: where one is accepted, the draft cache
  falls one token short, which the next root level makes good. `path` is `[B, D
  + 1]`, of which the first `count [B]` nodes count."""
  if block is None:
    return None
  depth = path.shape[1] - 1
  late = state.length - 1 - state.draft_cache.length
  slots = jnp.concatenate([jnp.zeros_like(path[:, :1]), 1 + path[:, :-1]], 1)
  order = jnp.arange(depth + 1)[None] + 1 - late[:, None]
  slots = buffers.take_along(slots, jnp.minimum(order, depth), axis=1)
  count = jnp.where(count > 0, late + jnp.minimum(count, depth), 0)
  return cache_lib.commit(state.draft_cache, block, slots, count)
