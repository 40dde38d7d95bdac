"""PEARL (arXiv 2408.11850): a chain that is drafted while another is scored.

Models run at the same time, in rounds of one target call and D draft calls. The
tokens drafted in a round come after those drafted in the last one, which the
target scores meanwhile; of the new ones it judges the first, by the
distribution after the last of the old ones:

    round        the target scores      drafted       judged
    pre-verify   x                      a1 a2 a3      a1
    post-verify  a1, a2 a3              b1 b2 b3      a2 a3 b1
    post-verify  b1, b2 b3              c1 c2 c3      b2 b3 c1

If all that is judged is accepted, the rest is pending, and the next round is a
post-verify. At the first rejection a token of the residual takes its place,
nothing is pending, and the next round is a pre-verify. Every token is judged by
ordinary rejection, so that the text has the target's distribution.
"""

import functools
from typing import Callable

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import (Array, Context, DecodeState, Decoder,
                                Stats)


@flax.struct.dataclass
class _Pending:
  """Drafted tokens after the newest token that no call has judged.

  Attributes:
    tokens: `[B, D - 1]` int32.
    log_probs: `[B, D - 1, V]` float32, of which they are samples.
    some: `[B]` bool; where not set, none is pending.
  """
  tokens: Array
  log_probs: Array
  some: Array


def decoder(depth: int, draw: Callable, judge: Callable) -> Decoder:
  """The decoder that drafts D tokens while the target scores as many.

  The draft cache holds the committed and the pending tokens but the last one.

  Args:
    depth: D, at least 2.
    draw: `(key, log_probs [V]) -> token []`, drafts.
    judge: `(uniform [], target [V], draft [V], token []) -> (accepted [],
      residual [V])`, distributions in and out.

  Returns:
    The decoder; its `stats.extra` has `post_verify_calls [B]`, those of the
    target calls that were a post-verify.
  """
  return Decoder(functools.partial(_init, depth),
                 functools.partial(_step, depth, draw, judge),
                 max_slots_ahead=2 * depth - 2, needs_draft=True)


def reject(uniform, target, draft, token):
  """Judges a sample of the draft distribution (arXiv 2211.17192)."""
  drafted, own = (vocabulary.take(x, token) for x in (draft, target))
  return uniform * drafted < own, sampling.residual(target, draft)


def match(uniform, target, draft, token):
  """Judges any token at temperature 0."""
  del uniform, draft
  return token == sampling.most_probable(target), target


def _init(depth, context: Context, state: DecodeState) -> DecodeState:
  batch = len(state.length)
  zeros = jnp.zeros(batch, jnp.int32)
  pending = batch, depth - 1
  return state.replace(
      carry=_Pending(jnp.zeros(pending, jnp.int32), jnp.zeros(
          (*pending, context.target.vocab_size), jnp.float32), zeros > 0),
      stats=Stats(zeros, zeros, zeros, zeros,
                  jnp.zeros((batch, depth + 1), jnp.int32),
                  {"post_verify_calls": zeros}))


def _step(depth, draw, judge, context: Context,
          state: DecodeState) -> DecodeState:
  """One round: neither model waits for the other's result."""
  pending, before = state.carry, state
  keys = jax.vmap(random.fold_in)(state.keys, state.step)
  draft_keys, verify_keys = jax.vmap(random.split, out_axes=1)(keys)
  newest = token_buffer.newest(state, 1)
  with jax.named_scope("draft"):
    fresh, draft_cache = _draft(depth, draw, draft_keys, context, state, newest)
  with jax.named_scope("target_forward"):
    logits, target_cache = greedy_rollout.extend(
        context.target, context.target_params, state.target_cache,
        jnp.concatenate([newest, pending.tokens], axis=1), 0)
  with jax.named_scope("verify"):
    chain, size = _judged(pending, fresh)
    tokens, accepted = jax.vmap(functools.partial(_verify, judge))(
        verify_keys, logits, context.warper, chain, size)
  with jax.named_scope("commit"):
    state, count = token_buffer.commit(
        state, tokens, token_buffer.log_probs(logits, tokens),
        jnp.minimum(accepted + 1, size), context.eos_id)
    some = (accepted == size) & ~state.done
    cached = state.length - 1
    return state.replace(
        carry=_Pending(fresh.tokens[:, 1:], fresh.log_probs[:, 1:], some),
        target_cache=cache_lib.rewind(target_cache, cached),
        draft_cache=cache_lib.rewind(
            draft_cache, cached + (depth - 1) * some.astype(jnp.int32)),
        stats=_count(before, depth, accepted, count))


def _draft(depth, draw, keys, context: Context, state: DecodeState, newest):
  """Drafts D tokens after the pending ones; returns them and the cache."""
  def step(carry, keys):
    token, cache = carry
    logits, cache = greedy_rollout.extend(
        context.draft, context.draft_params, cache, token[:, None], 1)
    log_probs = sampling.drop_underflowing(jax.vmap(sampling.log_probs)(
        context.draft_warper, logits[:, 0]))
    token = jax.vmap(draw)(keys, log_probs).astype(jnp.int32)
    return (token, cache), (token, log_probs)

  last = jnp.where(state.carry.some, state.carry.tokens[:, -1], newest[:, 0])
  keys = jax.vmap(lambda key: random.split(key, depth), out_axes=1)(keys)
  (_, cache), (tokens, log_probs) = jax.lax.scan(
      step, (last, state.draft_cache), keys)
  fresh = _Pending(tokens.swapaxes(0, 1), log_probs.swapaxes(0, 1),
                   ~state.done)
  return fresh, cache


def _judged(pending: _Pending, fresh: _Pending):
  """Returns `[B, D]` tokens and their distributions, and how many `[B]`."""
  def either(old, new):
    some = pending.some.reshape(-1, *(1,) * (old.ndim - 1))
    return jnp.where(some, jnp.concatenate([old, new[:, :1]], axis=1), new)

  chain = (either(pending.tokens, fresh.tokens),
           either(pending.log_probs, fresh.log_probs))
  size = jnp.where(pending.some, chain[0].shape[1], 1)
  return chain, size.astype(jnp.int32)


def _verify(judge, key, logits, warper, chain, size):
  """Judges a chain, in one row.

  Returns:
    `[D]` int32, the accepted tokens and, unless all are, one instead of the
    first that is not; and how many are accepted.
  """
  tokens, log_probs = chain
  order = jnp.arange(len(tokens))
  uniform_key, draw_key = random.split(key)
  target = jnp.exp(sampling.log_probs(warper, logits))
  hits, rests = jax.vmap(judge)(random.uniform(uniform_key, tokens.shape),
                                target, jnp.exp(log_probs), tokens)
  passed = jnp.cumprod((hits & (order < size)).astype(jnp.int32))
  accepted = passed.sum(dtype=jnp.int32)
  rest = rests[jnp.minimum(accepted, len(tokens) - 1)]
  other = sampling.draw(draw_key, jnp.log(rest)).astype(jnp.int32)
  return jnp.where(order == accepted, other, tokens), accepted


def _count(state: DecodeState, depth, accepted, count) -> Stats:
  """Returns the counts after a round; `state` is the one before it."""
  stats, runs = state.stats, (~state.done).astype(jnp.int32)
  post = runs * state.carry.some.astype(jnp.int32)
  depths = jnp.arange(depth + 1)[None]
  return Stats(
      target_calls=stats.target_calls + runs,
      draft_calls=stats.draft_calls + runs * depth,
      emitted=stats.emitted + count,
      nodes=stats.nodes + post * (depth - 1),
      accepted_by_depth=stats.accepted_by_depth + runs[:, None] * (
          depths == accepted[:, None]).astype(jnp.int32),
      extra={"post_verify_calls": stats.extra["post_verify_calls"] + post})
