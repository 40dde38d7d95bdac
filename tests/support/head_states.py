"""A head beside other drafters, and its state after what these have drafted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.speculation.drafters import feature_head
from models import transformer
from models.heads import mtp
from support import tiny_models as tiny


def models():
  """A target of four tokens and a head of it, as `dj.generate` takes them."""
  config = dataclasses.replace(tiny.LLAMA, vocab_size=4)
  layer = mtp.Config(mtp.layer_of(config))
  return {"target": transformer.with_features(config, (1,)),
          "target_params": tiny.random_model(config).params,
          "draft": mtp.head(layer, config), "draft_params": jax.tree.map(
              lambda x: 20 * x, mtp.init(jax.random.key(0), layer, config))}


def check(context, state, result):
  """Asserts that a head's state is that of the committed text, read at once."""
  tokens = jnp.maximum(state.tokens[:, :int(state.length.max())], 0)
  plain = feature_head.init(context.replace(
      prompts=tokens, prompt_lengths=state.length), state).carry
  np.testing.assert_array_equal(result.caches[0].length, plain.caches[0].length)
  scale = np.abs(plain.hidden).max()
  np.testing.assert_allclose(result.hidden / scale, plain.hidden / scale,
                             atol=1e-5)
