"""The distribution of the first tokens of a tiny transformer."""

import functools
import itertools

import jax
import numpy as np

from decoding_jax.testing import exactness
from models import transformer
from support import tiny_models as tiny


def p_value(config, prompt, tokens):
  """Of texts `[B, P + L]` after a prompt of `tiny.random_model(config)`."""
  length = tokens.shape[1] - len(prompt)
  counts = exactness.count(tokens[:, len(prompt):], config.vocab_size)
  return exactness.p_value(counts, _joint(config, prompt, length))


@functools.lru_cache(maxsize=None)
def _joint(config, prompt, length):
  texts = np.array([(*prompt, *x) for x in itertools.product(
      range(config.vocab_size), repeat=length)], np.int32)
  logits = transformer.causal_logits(*tiny.random_model(config), texts)
  log_probs = np.asarray(jax.nn.log_softmax(
      logits[:, len(prompt) - 1:-1]), np.float64)
  told = np.take_along_axis(log_probs, texts[:, len(prompt):, None], 2)
  found = np.exp(told.sum((1, 2))).reshape((config.vocab_size,) * length)
  return found / found.sum()
