"""Lookahead where the target is uncertain: the decoder of AdaDec."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import Context, DecodeState, Decoder, Stats


def decoder(num_candidates: int, steps: int, threshold: float) -> Decoder:
  """Makes the decoder of AdaDec, for temperature 0. Below the entropy
  `threshold`, in nats, the most probable token is taken; else `num_candidates`
  are rolled out by `steps` tokens each. `carry` are the target's logits `[B,
  V]` after the text; `stats.extra` has `lookaheads [B]`."""
  return Decoder(_init, functools.partial(_step, num_candidates, steps,
                                          threshold),
                 max_slots_ahead=1, max_samples_per_node=num_candidates)


def fit_threshold(entropies, correct) -> float:
  """Fits the entropy at which a token is looked ahead for.

  It is the threshold below which "the most probable token is right" and above
  which "it is wrong" are true most often. A logistic regression on the entropy
  alone, cut where it is most accurate, says the same.

  Args:
    entropies: `[N]`, of the target's distributions along reference texts, nats.
    correct: `[N]` bool, whether the most probable token is the text's.

  Returns:
    The threshold, in the middle between two of the entropies; inf if it is best
    never to look ahead, and 0 if it is best to do so always.

  Raises:
    ValueError: without entropies, or where the shapes differ.
  """
  entropies, correct = np.asarray(entropies, float), np.asarray(correct, bool)
  if entropies.ndim != 1 or not entropies.size or (
      correct.shape != entropies.shape):
    raise ValueError(f"entropies has shape {entropies.shape} and correct "
                     f"{correct.shape}: [N] of both is needed, N > 0.")
  order = np.argsort(entropies, kind="stable")
  entropies, correct = entropies[order], correct[order]
  # right[i]: tokens that are judged rightly if the first i are trusted.
  right = np.concatenate([[0], np.cumsum(correct)]) + np.concatenate(
      [np.cumsum(~correct[::-1])[::-1], [0]])
  # Equal entropies are trusted together.
  between = np.flatnonzero(np.diff(entropies) > 0) + 1
  cuts = np.concatenate([[0], between, [len(entropies)]])
  best = cuts[np.argmax(right[cuts])]
  if best == 0:
    return 0.0
  if best == len(entropies):
    return float("inf")
  return float((entropies[best - 1] + entropies[best]) / 2)


def entropy(logits):
  """Returns the entropy of `[..., V]` logits, `[...]` float32 in nats."""
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  possible = log_probs > -jnp.inf
  return -jnp.sum(jnp.where(possible, jnp.exp(log_probs) * log_probs, 0),
                  axis=-1)


def _init(context: Context, state: DecodeState) -> DecodeState:
  """Runs the target on the last token of each prompt as well."""
  logits, cache = greedy_rollout.extend(
      context.target, context.target_params, state.target_cache,
      token_buffer.newest(state, 1), 1)
  return state.replace(
      target_cache=cache, carry=logits[:, 0],
      stats=Stats.zeros(len(logits), lookaheads=()).add(target_calls=1))


def _step(num_candidates, steps, threshold, context: Context,
          state: DecodeState) -> DecodeState:
  """Chooses a token, with a lookahead in rows that are uncertain."""
  running = (~state.done).astype(jnp.int32)
  logits = greedy_rollout.allowed(context, state.carry)
  uncertain = running * (entropy(logits) >= threshold).astype(jnp.int32)
  best, candidates = sampling.top_k(logits, num_candidates)
  # A row without room is not rolled out; if there is none with, nothing runs.
  room = jnp.minimum(uncertain * (state.limit - state.length), 1 + steps)
  paths = greedy_rollout.roll_out(
      context, (context.target, context.target_params, state.target_cache),
      candidates, room, steps)
  first = best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  total = first + jnp.sum(jnp.where(paths.valid, paths.log_probs, 0), axis=-1)
  length = jnp.maximum(paths.valid.sum(axis=-1), 1).astype(jnp.float32)
  scores = jnp.where(best > -jnp.inf, total / length, -jnp.inf)
  index = jnp.where(uncertain > 0, jnp.argmax(scores, axis=-1), 0)[:, None]
  token = buffers.take_along(candidates, index, axis=1)
  state, count = token_buffer.commit(
      state, token, token_buffer.log_probs(state.carry[:, None], token),
      running, context.eos_id)
  logits, cache = greedy_rollout.extend(
      context.target, context.target_params, state.target_cache, token, count)
  return state.replace(
      target_cache=cache, carry=logits[:, 0],
      stats=state.stats.add(
          target_calls=running + paths.calls, emitted=count,
          accepted_by_depth=running[:, None], lookaheads=uncertain))
