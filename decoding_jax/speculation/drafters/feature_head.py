"""Drafting by a head on the target's features, instead of a draft model.

The state of a head is `DecodeState.carry`: what it has read of the committed
text. Rejected tokens leave no trace there, since it only ever reads tokens that
were committed, with the features that the target has computed of them.
"""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, prefill, token_buffer
from decoding_jax.speculation import expanders, shared_gumbel
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (AppliedParams, Context, DecodeState, Drafter,
                                DraftTree, Expander, Head, HIDDEN_STATES,
                                Params, Seen)


def init(context: Context, state: DecodeState) -> DecodeState:
  """Reads the prompts, as many tokens at a time as the prefill does.

  Raises:
    ValueError: while traced, if the target does not keep what the head reads.
  """
  head, cache = context.draft, state.target_cache
  _check_widths(head, cache)
  batch, width = context.prompts.shape
  carry = head.init(batch, cache_lib.capacity(cache))
  count = context.prompt_lengths - 1
  number, size = prefill.chunks(width - 1, prefill.CHUNK)
  if not number:
    return state.replace(carry=carry)
  after = jnp.pad(context.prompts[:, 1:], ((0, 0), (0, number * size + 1 -
                                                    width)))

  def read(i, carry):
    part = lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, 1)
    return head.read(*_params(context), carry,
                     tuple(map(part, cache.features[HIDDEN_STATES])),
                     part(after), jnp.clip(count - i * size, 0, size))

  carry = read(0, carry) if number == 1 else jax.lax.fori_loop(
      0, -(-count.max() // size), read, carry)
  return state.replace(carry=carry)


def propose(expander: Expander, keys, context: Context,
            state: DecodeState) -> tuple[DraftTree, None]:
  """Grows a tree by the logits of the head, at most as deep as it drafts."""
  head, layout = context.draft, expander.layout
  depth = tree_lib.depth(layout)
  root = token_buffer.newest(state, 1)[:, 0]
  if not depth:
    return tree_lib.root(root, 0).replace(
        noise_keys=shared_gumbel.keys_for(expander, state)), None
  params = _params(context)
  with jax.named_scope("draft_forward"):
    draft = head.start(*params, state.carry, root,
                       expanders.inner_nodes(layout))

  def logits(tree, level, nodes, draft):
    return head.logits(*params, state.carry, draft, tree, level, nodes)

  tree, _ = expanders.grow_by(keys, expander, root, logits, draft,
                              head.vocab_size, context.draft_warper,
                              shared_gumbel.keys_for(expander, state))
  return tree, None


def observe(context: Context, after: DecodeState, seen: Seen) -> DecodeState:
  """Reads the tokens that were committed, with the features before each."""
  path = seen.verdict.path[:, :, None]
  features = tuple(buffers.take_along(x, path, axis=1)
                   for x in seen.block.features[HIDDEN_STATES])
  return after.replace(carry=context.draft.read(
      *_params(context), after.carry, features, seen.tokens, seen.count))


def calls(drafter: Drafter, head: Head) -> int:
  """Returns the forwards of a step that a head drafts."""
  if drafter.head_calls:
    return drafter.head_calls(head)
  return head.forwards(tree_lib.depth(drafter.layout))


def _params(context):
  """Returns parameters of the head, and those of the target's own model."""
  return context.draft_params, _without_processors(context.target_params)


def _without_processors(params: Params) -> Params:
  while isinstance(params, AppliedParams):
    params = params.model
  return params


def _check_widths(head, cache):
  kept = tuple(x.shape[-1] for x in cache.features.get(HIDDEN_STATES, ()))
  if kept != head.widths:
    raise ValueError(
        f"draft: the head reads features of widths {head.widths}, the target "
        f"keeps {kept}: a target that keeps the outputs of the head's layers "
        "is needed, such as transformer.with_features(config, layers).")
