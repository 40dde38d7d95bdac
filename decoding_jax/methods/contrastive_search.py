"""Contrastive search: probable tokens that are unlike the text so far."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import (Context, DecodeState, Decoder, HIDDEN_STATES,
                                Method, Stats)
from decoding_jax.validation import values

EXAMPLES = (dict(num_candidates=3),)

# Norms are not divided by less.
_LEAST_NORM = 1e-12


def make(num_candidates: int, penalty: float = 0.6) -> Method:
  """Makes contrastive search (arXiv 2202.06417, section 4).

  For temperature 0. Of the most probable tokens v, the one with the largest
  (1 - penalty) p(v) - penalty max_j cos(h_v, h_j) is taken, where h_j are the
  hidden states of prompt and text, and h_v is the candidate's; of equal
  ones the more probable.

  The target must keep hidden states: `transformer.with_features(config,
  (config.num_layers,))`, those after the final norm, as in the authors' code.
  The last of its `HIDDEN_STATES` are compared. A token costs one forward of
  `num_candidates` tokens.

  Args:
    num_candidates: k, the most probable tokens of the target.
    penalty: alpha, 0 to 1; 0 is greedy decoding.

  Raises:
    ValueError: naming the option, its value and what is allowed; and from
      `generate`, for a target that keeps no features.
  """
  values.check_positive("num_candidates", num_candidates)
  values.check_number("penalty", penalty, 0.0, 1.0)
  return Method(f"contrastive_search({num_candidates}, penalty={penalty:g})",
                sampled=None,
                greedy=Decoder(_init, functools.partial(
                    _step, int(num_candidates), float(penalty)),
                               max_slots_ahead=1,
                               max_samples_per_node=int(num_candidates),
                               needs_features=True))


def _init(context: Context, state: DecodeState) -> DecodeState:
  """Runs the target on the last token of each prompt as well. From then on its
  cache holds the whole text, and `carry` are the logits `[B, V]` after it."""
  logits, cache = greedy_rollout.extend(
      context.target, context.target_params, state.target_cache,
      token_buffer.newest(state, 1), 1)
  return state.replace(
      target_cache=cache, carry=logits[:, 0],
      stats=Stats.zeros(len(logits)).add(target_calls=1))


def _step(num_candidates, penalty, context: Context,
          state: DecodeState) -> DecodeState:
  """Scores the candidates by one forward, and commits the best one."""
  running, cache = (~state.done).astype(jnp.int32), state.target_cache
  logits = greedy_rollout.allowed(context, state.carry)
  best, candidates = sampling.top_k(logits, num_candidates)
  next_logits, block = _forward(context, cache, candidates)
  probs = jnp.exp(best - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
  scores = (1 - penalty) * probs - penalty * _similarity(cache, block)
  index = jnp.argmax(jnp.where(best > -jnp.inf, scores, -jnp.inf),
                     axis=-1)[:, None]
  token = buffers.take_along(candidates, index, axis=1)
  state, count = token_buffer.commit(
      state, token, token_buffer.log_probs(state.carry[:, None], token),
      running, context.eos_id)
  return state.replace(
      carry=buffers.take_along(next_logits, index[..., None], axis=1)[:, 0],
      target_cache=cache_lib.commit(cache, block, index.astype(jnp.int32),
                                    count),
      stats=state.stats.add(target_calls=running, emitted=count,
                            accepted_by_depth=running[:, None]))


def _forward(context: Context, cache, candidates):
  """Runs the target on several tokens that follow the same text.

  Returns:
    logits `[B, K, V]` float32 and the block of K slots.
  """
  size = candidates.shape[1]
  alone = jnp.broadcast_to(jnp.eye(size, dtype=bool), (*candidates.shape, size))
  positions = jnp.broadcast_to(cache.length[:, None], candidates.shape)
  logits, block = context.target.forward(
      context.target_params, candidates, positions, cache,
      cache_lib.init_block(cache, size), 0, alone)
  return logits.astype(jnp.float32), block


def _similarity(cache, block):
  """Returns `[B, K]`, the largest cosine of a candidate with a past token."""
  past, new = (_unit(x.features[HIDDEN_STATES][-1]) for x in (cache, block))
  product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
  valid = jnp.arange(past.shape[1])[None] < (
      cache.length - cache_lib.num_shared(cache))[:, None]
  cosines = jnp.where(valid[:, None], product("bkf,bsf->bks", new, past), -1.)
  if cache.shared is None:
    return cosines.max(axis=-1)
  once = _unit(cache.shared.features[HIDDEN_STATES][-1][0])
  return jnp.maximum(cosines.max(axis=-1),
                     product("bkf,sf->bks", new, once).max(axis=-1))


def _unit(x):
  x = x.astype(jnp.float32)
  norm = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
  return x / jnp.maximum(norm, _LEAST_NORM)
