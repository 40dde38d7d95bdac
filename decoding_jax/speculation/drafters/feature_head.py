"""Drafting by a head on the target's features, instead of a draft model.

A head's state, `DecodeState.carry`, holds committed tokens only, so rejected
tokens leave no trace.
"""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, prefill, token_buffer
from decoding_jax.speculation import expanders, shared_noise
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (AppliedParams, Context, DecodeState, DraftTree,
                                Expander, HIDDEN_STATES, Seen)


def init(context: Context, state: DecodeState) -> DecodeState:
  """Reads the prompts, as many tokens at a time as the prefill does. What
  prompts share is read once, and then kept in each row. A ValueError says so if
  the target does not keep what the head reads."""
  head, cache = context.draft, state.target_cache
  kept = tuple(x.shape[-1] for x in cache.features.get(HIDDEN_STATES, ()))
  if kept != head.widths:
    raise ValueError(
        f"draft: the head reads features of widths {head.widths}, the target "
        f"keeps {kept}: a target that keeps the outputs of the head's layers "
        "is needed, such as transformer.with_features(config, layers).")
  batch, after = len(context.prompts), context.prompts[:, 1:]
  count, slots = context.prompt_lengths - 1, cache_lib.capacity(cache)
  shared = cache_lib.num_shared(cache)
  if not shared:
    return state.replace(carry=_read(context, head.init(batch, slots),
                                     cache.features[HIDDEN_STATES], after,
                                     count))
  once, last = shared - 1, slice(shared - 1, shared)
  carry = cache_lib.repeat_row(batch, _read(
      context, head.init(1, slots), cache.shared.features[HIDDEN_STATES],
      after[:1, :once], jnp.full(1, once, jnp.int32)))
  # Tokens after the last shared one differ.
  carry = _read(context, carry, tuple(
      jnp.broadcast_to(x[:, last], (batch, 1, x.shape[2]))
      for x in cache.shared.features[HIDDEN_STATES]), after[:, last],
                jnp.ones_like(count))
  return state.replace(carry=_read(
      context, carry, cache.features[HIDDEN_STATES], after[:, shared:],
      count - shared))


def _read(context, carry, features, tokens, count):
  """Reads pairs of features `[B, S, F]` and the tokens `[B, T]` after them."""
  width = tokens.shape[1]
  number, size = prefill.chunks(width, prefill.CHUNK)
  if not number:
    return carry

  def padded(x):
    widths = [(0, 0)] * x.ndim
    widths[1] = 0, max(0, number * size - x.shape[1])
    return jnp.pad(x, widths)

  features, tokens = tuple(map(padded, features)), padded(tokens)

  def read(i, carry):
    part = lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, 1)
    return context.draft.read(*_params(context), carry,
                              tuple(map(part, features)), part(tokens),
                              jnp.clip(count - i * size, 0, size))

  return read(0, carry) if number == 1 else jax.lax.fori_loop(
      0, -(-count.max() // size), read, carry)


def propose(expander: Expander, keys, context: Context,
            state: DecodeState) -> tuple[DraftTree, None]:
  """Grows a tree by the logits of the head, at most as deep as it drafts."""
  head, layout = context.draft, expander.layout
  depth = tree_lib.depth(layout)
  root = token_buffer.newest(state, 1)[:, 0]
  if not depth:
    return tree_lib.root(root, 0).replace(
        noise_keys=shared_noise.keys_for(expander, state)), None
  params = _params(context)
  with jax.named_scope("draft_forward"):
    draft = head.start(*params, state.carry, root,
                       expanders.inner_nodes(layout))

  def logits(tree, level, nodes, draft):
    return head.logits(*params, state.carry, draft, tree, level, nodes)

  tree, _ = expanders.grow_by(keys, expander, root, logits, draft,
                              head.vocab_size, context.draft_warper,
                              shared_noise.keys_for(expander, state))
  return tree, None


def observe(context: Context, after: DecodeState, seen: Seen) -> DecodeState:
  """Reads the tokens that were committed, with the features before each."""
  path = seen.verdict.path[:, :, None]
  features = tuple(buffers.take_along(x, path, axis=1)
                   for x in seen.block.features[HIDDEN_STATES])
  return after.replace(carry=context.draft.read(
      *_params(context), after.carry, features, seen.tokens, seen.count))


def _params(context):
  """Returns parameters of the head, and of the target without processors."""
  params = context.target_params
  while isinstance(params, AppliedParams):
    params = params.model
  return context.draft_params, params
