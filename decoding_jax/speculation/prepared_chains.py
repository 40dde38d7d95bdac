"""SSD (arXiv 2603.03251): drafts for the outcomes of a verification under way.

A round scores a chain c1 .. cD after the newest token x. Its outcome is the
number of accepted tokens j and the token b after them. Meanwhile the drafter
guesses tokens b for each j, and drafts a chain of D after each guess:

    x  c1  c2            D = 2, two guesses; j = 0: after x come b or b', not c1
    |- b  . .            the chain that is scored next if c1 is rejected for b
    |- b' . .
        |- b  . .        j = 1: c2 is rejected
        |- b' . .
            |- b  . .    j = 2: all are accepted
            |- b' . .

A guessed outcome's chain is scored at once; otherwise the drafter drafts one.
The prepared chain is independent of the outcome, so ordinary rejection is
exact.
"""

import functools
from typing import Callable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels, sampling
from decoding_jax.kernels import random
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import parallel_chain, rounds, tree_decoder
from decoding_jax.types import Array, Context, DecodeState, Decoder, Verifier

# The outcome before the first round.
_NO_OUTCOME = -1


@flax.struct.dataclass
class _Chain:
  """The chain that the target scores."""
  tokens: Array  # `[B, D]` int32
  log_probs: Array  # `[B, D, V]` float32, of which they are samples
  prepared: Array  # `[B]` bool, whether they were there at once


@flax.struct.dataclass
class _Prepared:
  """The drafter's state."""
  chain: Array  # `[B, D]` int32, what the target scores
  guesses: Array  # `[B, G]` int32, tokens that may follow its prefixes
  tokens: Array  # `[B, G, D]` int32, drafted after these
  log_probs: Array  # `[B, G, D, V]` float32


def decoder(guesses: tuple[int, ...], draw: Callable,
            verifier: Verifier) -> Decoder:
  """Makes SSD's decoder: chains are prepared while the target scores one.

  The outcome of a round is how many drafted tokens were accepted.
  `stats.extra` has `prepared_calls [B]`.

  Args:
    guesses: `D + 1` numbers, tokens that are guessed where 0, 1, ..., D are
      accepted; G together.
    draw: `(key, log_probs [V]) -> token []`, drafts.
    verifier: has a rule for chains.
  """
  depth = len(guesses) - 1
  return rounds.decoder(rounds.Rounds(
      functools.partial(_begin, guesses),
      functools.partial(_propose, guesses, draw), _score,
      functools.partial(_prepare, guesses, draw),
      functools.partial(_settle, depth, verifier), depth, ("prepared_calls",)),
                        depth, max_samples_per_node=max(guesses))


def _accepted(guesses):
  """Returns `[G]`, how many tokens are accepted where each guess is right."""
  return np.repeat(np.arange(len(guesses)), guesses)


def _begin(guesses, context: Context, state: DecodeState):
  zeros = jnp.zeros(len(state.length), jnp.int32)
  empty = lambda *shape: jnp.zeros((len(zeros), *shape), jnp.int32)
  depth, number = len(guesses) - 1, sum(guesses)
  chains = number, depth
  prepared = _Prepared(
      empty(depth), empty(number), empty(*chains),
      empty(*chains, context.target.vocab_size).astype(jnp.float32))
  return rounds.Carry((), prepared, zeros + _NO_OUTCOME)


def _propose(guesses, draw, context: Context, drafting: rounds.Drafting):
  """Takes the chain of the outcome, or drafts one where there is none."""
  news, prepared = drafting.news, drafting.carry
  keys, _ = _keys(drafting)
  cache = cache_lib.rewind(drafting.cache, news.length - 1)
  right = (prepared.guesses == news.newest[:, None]) & (
      _accepted(guesses)[None] == news.outcome[:, None])
  index, hit = jnp.argmax(right, axis=1), right.any(axis=1)
  chain = [kernels.take_along(
      x, index.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]
           for x in (prepared.tokens, prepared.log_probs)]

  def redraft(cache):
    *fresh, cache = parallel_chain.draft(len(guesses) - 1, draw, keys, context,
                                         cache, news.newest)
    return [cache_lib.pick_rows(hit, old, new)
            for old, new in zip(chain, fresh)], cache

  (tokens, log_probs), cache = jax.lax.cond(
      (hit | news.done).all(), lambda cache: (chain, cache), redraft, cache)
  # The next forward reads the chain again, whoever has drafted it.
  return _Chain(tokens, log_probs, hit), drafting.replace(
      cache=cache_lib.rewind(cache, news.length - 1),
      carry=prepared.replace(chain=tokens))


def _keys(drafting: rounds.Drafting):
  """Returns keys `[B]` of a chain drafted now, and of those prepared."""
  keys, _ = rounds.split_keys(drafting.keys, drafting.news.step)
  return jax.vmap(random.split, out_axes=1)(keys)


def _score(context: Context, state: DecodeState, chain: _Chain):
  return greedy_rollout.extend(
      context.target, context.target_params, state.target_cache,
      jnp.concatenate([token_buffer.newest(state, 1), chain.tokens], axis=1), 0)


def _prepare(guesses, draw, context: Context, drafting: rounds.Drafting):
  """Guesses outcomes, and drafts a chain after each."""
  news, cache, chain = drafting.news, drafting.cache, drafting.carry.chain
  batch, depth, number = len(chain), len(guesses) - 1, sum(guesses)
  block = cache_lib.init_block(cache, depth + 1 + depth * number)
  slots = jnp.arange(depth + 1 + depth * number)[None]
  # Of each chain: how many tokens were accepted, and where its own slots are.
  after = _accepted(guesses)
  own = (slots - depth - 1) % number == jnp.arange(number)[:, None]
  seen = (slots <= after[:, None]) & (slots <= depth)

  def forward(tokens, offset, block, slot, mask):
    rows = lambda x: jnp.broadcast_to(x, (batch, *x.shape))
    logits, block = context.draft.forward(
        context.draft_params, tokens, cache.length[:, None] + offset[None],
        cache, block, slot, rows(mask))
    return rounds.draft_log_probs(context, logits.astype(jnp.float32)), block

  order = jnp.arange(depth + 1)
  log_probs, block = forward(
      jnp.concatenate([news.newest[:, None], chain], axis=1), order, block, 0,
      slots <= order[:, None])
  guessed = _guess(guesses, chain, log_probs)
  _, keys = _keys(drafting)
  keys = jax.vmap(lambda key: random.split(key, depth * number),
                  out_axes=1)(keys).reshape(depth, number, batch)

  def level(carry, inputs):
    (tokens, block), (i, keys) = carry, inputs
    first = depth + 1 + i * number
    mask = seen | (own & (slots > depth) & (slots < first + number))
    log_probs, block = forward(tokens, after + 1 + i, block, first, mask)
    tokens = jax.vmap(jax.vmap(draw))(keys.T, log_probs).astype(jnp.int32)
    return (tokens, block), (tokens, log_probs)

  (_, block), (tokens, log_probs) = jax.lax.scan(
      level, (guessed, block), (jnp.arange(depth), keys))
  cache = cache_lib.commit(
      cache, block, cache_lib.await_logits(
          jnp.broadcast_to(order, (batch, depth + 1)), log_probs[-1]), 0)
  return None, drafting.replace(cache=cache, carry=_Prepared(
      chain, guessed, *(jnp.moveaxis(x, 0, 2) for x in (tokens, log_probs))))


def _guess(guesses, chain, log_probs):
  """Returns `[B, G]` int32, the likeliest tokens after each prefix. The next
  token of the chain is none of them: it is rejected or accepted."""
  tokens = jax.lax.broadcasted_iota(jnp.int32, log_probs.shape, 2)
  following = jnp.pad(chain, ((0, 0), (0, 1)), constant_values=-1)
  others = jnp.where(tokens == following[..., None], -jnp.inf, log_probs)
  best = sampling.top_k(others, max(guesses))[1].astype(jnp.int32)
  rank = np.concatenate([np.arange(number) for number in guesses])
  return best[:, _accepted(guesses), rank]


def _settle(depth, verifier, context: Context, before: DecodeState,
            chain: _Chain, late, logits) -> DecodeState:
  del late
  _, keys = rounds.split_keys(before.keys, before.step)
  with jax.named_scope("verify"):
    tokens, accepted = jax.vmap(
        functools.partial(rounds.verify, verifier, size=depth))(
            keys, logits, context.warper, (chain.tokens, chain.log_probs))
  with jax.named_scope("commit"):
    state, count = token_buffer.commit(
        before, tokens, token_buffer.log_probs(logits, tokens), accepted + 1,
        context.eos_id)
    redrafted = depth * (~chain.prepared).astype(jnp.int32)
    return state.replace(
        carry=before.carry.replace(outcome=accepted),
        target_cache=cache_lib.rewind(state.target_cache, state.length - 1),
        stats=tree_decoder.count_call(
            before, accepted, count, draft_calls=depth + 1 + redrafted,
            nodes=depth, prepared_calls=chain.prepared.astype(jnp.int32)))
