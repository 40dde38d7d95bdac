"""Steps in parts: a drafter and a target that work at the same time.

    early, drafting = propose(context, drafting)          the drafter
    logits, cache   = score(context, text, early)         the target
    late, drafting  = prepare(context, drafting)          the drafter, meanwhile
    text            = settle(context, text, early, late, logits)   the target

`decoder` runs the parts in one program; `decoding_jax.roles` runs them on two
groups of devices, where `prepare` and `score` overlap. Texts are the same.
"""

import functools
from typing import Any, Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import verifiers
from decoding_jax.types import (Array, Cache, Context, DecodeState, Decoder,
                                NONE, Stats, Verifier)


@flax.struct.dataclass
class News:
  """What the drafter learns from the target after a round."""
  newest: Array  # `[B]` int32, the last token of the text
  length: Array  # `[B]` int32, of the text
  step: Array  # `[B]` int32, rounds so far
  done: Array  # `[B]` bool
  # `[B]` int32, of the round before; what the method needs to know.
  outcome: Array


@flax.struct.dataclass
class Drafting:
  """The drafter's state."""
  keys: Array  # `[B]`, of the rows
  cache: Cache  # of the draft model
  news: News  # what it heard last
  carry: Any  # arrays of the method's own, with rows first


@flax.struct.dataclass
class Carry:
  """The carry of a `DecodeState`: of target and drafter, and between them."""
  text: Any  # method-specific arrays on the target's devices, `[B, ...]`
  drafter: Any  # arrays of the drafter; None where it is on other devices
  outcome: Array  # of `News`


class Rounds(NamedTuple):
  """A step in parts; functions of all rows."""
  begin: Callable[..., Carry]  # `(context, state) -> Carry`
  # `(context, Drafting) -> (early, Drafting)`, what the target must have before
  # it scores; a tree of arrays with rows first
  propose: Callable[..., tuple[Any, Drafting]]
  # `(context, DecodeState, early) -> (logits, cache)`
  score: Callable[..., tuple[Array, Cache]]
  # `(context, Drafting) -> (late, Drafting)`, what it must have before it
  # settles, as `early`
  prepare: Callable[..., tuple[Any, Drafting]]
  # `(context, DecodeState, early, late, logits) -> DecodeState`, whose
  # `carry.outcome` is new
  settle: Callable[..., DecodeState]
  depth: int  # D, tokens that a round accepts at most
  counts: tuple[str, ...]  # Names of `Stats.extra`


def decoder(rounds: Rounds, max_slots_ahead: int,
            max_samples_per_node: int = 1) -> Decoder:
  """Returns the decoder of one program, of which `roles` takes the parts."""
  return Decoder(functools.partial(_init, rounds),
                 functools.partial(_step, rounds), max_slots_ahead,
                 max_samples_per_node, needs_draft=True, rounds=rounds)


@functools.lru_cache(maxsize=None)
def sampled_and_greedy(make, sizes) -> tuple[Decoder, Decoder]:
  """Returns `make(sizes, draw, verifier)` for temperatures above 0, and 0."""
  return (make(sizes, sampling.draw, verifiers.recursive(replacement=False)),
          make(sizes, lambda key, log_probs: sampling.most_probable(log_probs),
               verifiers.match()))


def drafting(state: DecodeState) -> Drafting:
  """Returns what the drafter has of a state."""
  return Drafting(state.keys, state.draft_cache, news(state),
                  state.carry.drafter)


def text(state: DecodeState) -> DecodeState:
  """Returns what the target has of a state."""
  return state.replace(draft_cache=None,
                       carry=state.carry.replace(drafter=None))


def news(state: DecodeState) -> News:
  """Returns what the drafter hears of a state of the target."""
  return News(token_buffer.newest(state, 1)[:, 0], state.length, state.step,
              state.done, state.carry.outcome)


def split_keys(keys, step):
  """Returns keys `[B]` of the draft of a round, and of its verification."""
  keys = jax.vmap(random.fold_in)(keys, step)
  return jax.vmap(random.split, out_axes=1)(keys)


def draft_log_probs(context: Context, logits):
  """Returns the draft's distributions `[B, T, V]`, in logs, of its logits."""
  return sampling.drop_underflowing(jax.vmap(sampling.log_probs)(
      context.draft_warper, logits))


def verify(verifier: Verifier, key, logits, warper, chain, size):
  """Verifies the first `size []` of a chain of D tokens at once, in one row.
  `logits` are `[D, V]` before each token, or `[D + 1, V]` if a token follows a
  fully accepted chain; `chain` is (tokens `[D]`, draft log-probabilities `[D,
  V]`). Returns the accepted tokens with the one after them, and the number
  accepted."""
  tokens, log_probs = chain
  depth, width = len(tokens), len(logits)
  uniform_key, draw_key = random.split(key)
  target = jnp.exp(sampling.log_probs(warper, logits))
  one = lambda x: x[:, None]
  ranks, rests = jax.vmap(verifier.rule)(
      one(random.uniform(uniform_key, tokens.shape)), target[:depth],
      jnp.exp(log_probs), one(tokens), one(jnp.arange(depth) < size))
  accepted = jnp.cumprod(ranks != NONE, dtype=jnp.int32).sum(dtype=jnp.int32)
  rests = jnp.concatenate([rests, target[depth:]])
  rest = rests[jnp.minimum(accepted, width - 1)]
  other = sampling.draw(draw_key, jnp.log(rest)).astype(jnp.int32)
  tokens = jnp.pad(tokens, (0, width - depth))
  return jnp.where(jnp.arange(width) == accepted, other, tokens), accepted


def _init(rounds: Rounds, context: Context, state: DecodeState) -> DecodeState:
  stats = Stats.zeros(len(state.length), rounds.depth,
                      **dict.fromkeys(rounds.counts, ()))
  return state.replace(carry=rounds.begin(context, state), stats=stats)


def _step(rounds: Rounds, context: Context, state: DecodeState) -> DecodeState:
  """One round in one program."""
  with jax.named_scope("draft"):
    early, own = rounds.propose(context, drafting(state))
  with jax.named_scope("target_forward"):
    logits, cache = rounds.score(context, text(state), early)
  with jax.named_scope("draft"):
    late, own = rounds.prepare(context, own)
  new = rounds.settle(context, text(state).replace(target_cache=cache), early,
                      late, logits)
  return new.replace(draft_cache=own.cache,
                     carry=new.carry.replace(drafter=own.carry))
