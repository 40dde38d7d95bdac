"""PEARL (arXiv 2408.11850): a chain that is drafted while another is scored.

A round is one target call and D draft calls at the same time. The target judges
the chain of the last round and the first new token:

    round        the target scores      drafted       judged
    pre-verify   x                      a1 a2 a3      a1
    post-verify  a1, a2 a3              b1 b2 b3      a2 a3 b1
    post-verify  b1, b2 b3              c1 c2 c3      b2 b3 c1

If all judged tokens are accepted, the rest is pending and the next round is a
post-verify. A rejection emits a token of the residual, and the next round is a
pre-verify. Ordinary rejection judges every token, so the text is exact.
"""

import functools
from typing import Callable

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import rounds, tree_decoder
from decoding_jax.types import Array, Context, DecodeState, Decoder, Verifier


@flax.struct.dataclass
class _Drafts:
  """Drafted tokens in their order."""
  tokens: Array  # `[B, T]` int32; T is D, or D - 1 of those that are pending
  log_probs: Array  # `[B, T, V]` float32, of which they are samples


def decoder(depth: int, draw: Callable, verifier: Verifier) -> Decoder:
  """Makes PEARL's decoder: D tokens are drafted while as many are scored.

  The outcome of a round is 1 where tokens are pending. The target carries these
  and the drafter the last of them, up to which its cache goes.
  `stats.extra` has `post_verify_calls [B]`.

  Args:
    depth: D, at least 2.
    draw: `(key, log_probs [V]) -> token []`, drafts.
    verifier: has a rule for chains.
  """
  return rounds.decoder(rounds.Rounds(
      functools.partial(_begin, depth), functools.partial(_propose, depth),
      _score, functools.partial(_prepare, depth, draw),
      functools.partial(_settle, depth, verifier), depth,
      ("post_verify_calls",)), 2 * depth - 2)


def _begin(depth, context: Context, state: DecodeState):
  zeros = jnp.zeros(len(state.length), jnp.int32)
  pending = len(zeros), depth - 1
  drafts = _Drafts(jnp.zeros(pending, jnp.int32), jnp.zeros(
      (*pending, context.target.vocab_size), jnp.float32))
  return rounds.Carry(drafts, zeros, zeros)


def _propose(depth, context: Context, drafting: rounds.Drafting):
  """Nothing: the target has what is pending. Drops what was rejected."""
  del context
  news = drafting.news
  length = news.length - 1 + (depth - 1) * news.outcome
  return None, drafting.replace(cache=cache_lib.rewind(
      drafting.cache, length))


def _score(context: Context, state: DecodeState, early):
  del early
  return greedy_rollout.extend(
      context.target, context.target_params, state.target_cache,
      jnp.concatenate([token_buffer.newest(state, 1), state.carry.text.tokens],
                      axis=1), 0)


def _prepare(depth, draw, context: Context, drafting: rounds.Drafting):
  """Drafts D tokens after the pending ones."""
  news = drafting.news
  last = jnp.where(news.outcome > 0, drafting.carry, news.newest)
  keys, _ = rounds.split_keys(drafting.keys, news.step)
  tokens, log_probs, cache = draft(depth, draw, keys, context, drafting.cache,
                                   last)
  return _Drafts(tokens, log_probs), drafting.replace(cache=cache,
                                                      carry=tokens[:, -1])


def draft(depth, draw, keys, context: Context, cache, last):
  """Drafts D tokens after `last [B]`, which the draft model's cache lacks.
  Returns tokens `[B, D]`, the log-probabilities `[B, D, V]` that they are drawn
  of, and the cache with all but the last of them."""
  def step(carry, keys):
    token, cache = carry
    logits, cache = greedy_rollout.extend(
        context.draft, context.draft_params, cache, token[:, None], 1)
    log_probs = rounds.draft_log_probs(context, logits[:, 0])
    token = jax.vmap(draw)(keys, log_probs).astype(jnp.int32)
    return (token, cache), (token, log_probs)

  keys = jax.vmap(lambda key: random.split(key, depth), out_axes=1)(keys)
  (_, cache), (tokens, log_probs) = jax.lax.scan(step, (last, cache), keys)
  return tokens.swapaxes(0, 1), log_probs.swapaxes(0, 1), cache


def _settle(depth, verifier, context: Context, before: DecodeState, early,
            fresh: _Drafts, logits) -> DecodeState:
  del early
  carry = before.carry
  _, keys = rounds.split_keys(before.keys, before.step)
  with jax.named_scope("verify"):
    chain, size = _judged(carry.text, carry.outcome > 0, fresh)
    tokens, accepted = jax.vmap(functools.partial(rounds.verify, verifier))(
        keys, logits, context.warper, chain, size)
  with jax.named_scope("commit"):
    state, count = token_buffer.commit(
        before, tokens, token_buffer.log_probs(logits, tokens),
        jnp.minimum(accepted + 1, size), context.eos_id)
    outcome = ((accepted == size) & ~state.done).astype(jnp.int32)
    pending = jax.tree.map(lambda x: x[:, 1:], fresh)
    return state.replace(
        carry=rounds.Carry(pending, carry.drafter, outcome),
        target_cache=cache_lib.rewind(state.target_cache, state.length - 1),
        stats=tree_decoder.count_call(
            before, accepted, count, draft_calls=depth,
            nodes=carry.outcome * (depth - 1),
            post_verify_calls=carry.outcome))


def _judged(pending: _Drafts, some, fresh: _Drafts):
  """Returns `[B, D]` tokens and their distributions, and how many `[B]`."""
  def either(old, new):
    chosen = some.reshape(-1, *(1,) * (old.ndim - 1))
    return jnp.where(chosen, jnp.concatenate([old, new[:, :1]], axis=1), new)

  chain = (either(pending.tokens, fresh.tokens),
           either(pending.log_probs, fresh.log_probs))
  size = jnp.where(some, chain[0].shape[1], 1)
  return chain, size.astype(jnp.int32)
