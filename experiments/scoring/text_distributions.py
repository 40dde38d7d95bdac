"""Distributions of the next token at each position of texts that are known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.runtime import cache as cache_lib


def at(lm, params, sampling, texts, places, greedy_as_samples=False):
  """Returns distributions after beginnings of texts, `[sum of n, V]`.

  `places` has `[n]` integers for each text: how many tokens each of its
  beginnings has, at least 1. `greedy_as_samples` takes temperature 0 for 1, as
  for drafters. Rows come one after the other.
  """
  warper = sampling_lib.make_warper(sampling, 1, lm.vocab_size)
  if greedy_as_samples and warper.greedy:
    warper = sampling_lib.without_temperature(warper)
  size = max(map(len, texts))
  padded = lambda row: np.pad(np.maximum(row, 0), (0, size - len(row)))[None]
  # One row at a time: logits of many would need much memory.
  found = [np.asarray(_of_row(lm, params, warper, padded(row)))[ends - 1]
           for row, ends in zip(texts, places) if len(ends)]
  return np.concatenate(found or [np.zeros((0, lm.vocab_size), np.float32)])


@functools.partial(programs.jit, static_argnums=(0,))
def _of_row(lm, params, warper, tokens):
  """Returns `[L, V]` probabilities after each token of `tokens [1, L]`."""
  size = tokens.shape[1]
  cache = lm.init_cache(1, cache_lib.round_up(size))
  mask = jnp.tril(jnp.ones((size, size), bool))[None]
  positions = jnp.arange(size, dtype=jnp.int32)[None]
  logits, _ = lm.forward(params, tokens, positions, cache,
                         cache_lib.init_block(cache, size), 0, mask)
  return jnp.exp(jax.vmap(sampling_lib.log_probs)(warper, logits))[0]
