"""A head beside other drafters, and its state after what these have drafted."""

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from decoding_jax.speculation.drafters import feature_head
from decoding_jax.testing import drafter_conformance, exactness
from support import helpers, small_heads, tiny_models as tiny


def fit(method, given, probs=None, rows=8000, length=4):
  """The p-value of texts after tokens 1 and 2, and their statistics; `probs`
  `[V] * length` is their distribution where it is not that of a target alone.
  """
  out = dj.generate(jax.random.key(1), np.tile([[1, 2]], (rows, 1)),
                    np.full(rows, 2), method=method, max_new_tokens=length,
                    **given)
  if probs is None:
    target = tiny.random_model(small_heads.TARGET)
    return helpers.p_value_of_model(target, (1, 2), out.tokens), out.stats
  return exactness.p_value(exactness.count(out.tokens[:, 2:], 4),
                           probs), out.stats


def stepped(given, pair, number, prompts=np.tile(tiny.PROMPTS[:2] % 4, (4, 1)),
            lengths=np.tile(tiny.LENGTHS[:2], 4)):
  """Returns the context, and (state, `Seen`) of each step of a pair."""
  decoder, rows = tree_decoder.of_pair(pair), len(prompts)
  context, state = drafter_conformance._begin(
      decoder, drafter_conformance._Models(
          **{"draft": None, "draft_params": None, **given}),
      jax.random.split(jax.random.key(4), rows), prompts, lengths,
      np.full(rows, 60))
  step = jax.jit(lambda state: decoder.step_with_tree(context, state))
  results = []
  for _ in range(number):
    state, seen = step(state)
    results.append((state, seen))
  return context, results


def check(context, state, result):
  """Asserts that a head's state is that of the committed text, read at once."""
  tokens = jnp.maximum(state.tokens[:, :int(state.length.max())], 0)
  plain = feature_head.init(context.replace(
      prompts=tokens, prompt_lengths=state.length), state).carry
  np.testing.assert_array_equal(result.caches[0].length, plain.caches[0].length)
  scale = np.abs(plain.hidden).max()
  np.testing.assert_allclose(result.hidden / scale, plain.hidden / scale,
                             atol=1e-5)
