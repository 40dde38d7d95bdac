"""A model that verifies as an autoregressive one what it drafts in a block."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import conformance
from models import transformer
from support import masked_models as toys, tiny_models as tiny

CONFIG = dataclasses.replace(tiny.LLAMA, vocab_size=toys.VOCAB)
NETWORK = tiny.random_model(CONFIG)


def masked(shifted):
  return dj.canvas.MaskedModel(NETWORK.lm, toys.MASK, shifted,
                               block_causal=True)


def slow_logits(shifted, params, tokens):
  """Of the next token of each prefix, read from its beginning with a mask."""
  rows = []
  for end in range(1, tokens.shape[1] + 1):
    text = jnp.pad(tokens[:, :end], ((0, 0), (0, 1)),
                   constant_values=toys.MASK)
    rows.append(transformer.causal_logits(
        NETWORK.lm, params, text)[:, end - shifted])
  logits = jnp.stack(rows, axis=1)
  return logits.at[:, :, toys.MASK].set(-jnp.inf)


@pytest.mark.parametrize("shifted", [False, True])
def test_conforms_to_one_forward_a_prefix(shifted):
  target = dj.canvas.as_target(masked(shifted))
  conformance.check_model(target, NETWORK.params,
                          functools.partial(slow_logits, shifted))
  # Control: the logits of the other kind of model.
  with pytest.raises(AssertionError):
    conformance.check_model(target, NETWORK.params,
                            functools.partial(slow_logits, not shifted))


@pytest.mark.parametrize("shifted", [False, True])
def test_a_model_verifies_its_own_blocks(shifted):
  model = masked(shifted)
  prompts, lengths = np.arange(4)[:, None] + 1, np.ones(4, np.int32)
  slow = dj.canvas.generate(
      jax.random.key(0), prompts, lengths,
      method=dj.canvas.methods.static(1), model=model, params=NETWORK.params,
      length=12, block=1)
  out = dj.generate(
      jax.random.key(0), prompts, lengths, max_new_tokens=12,
      method=dj.methods.masked_draft((2, 1, 1), window=16),
      target=dj.canvas.as_target(model), target_params=NETWORK.params,
      draft=dj.canvas.as_draft(model, toys.VOCAB),
      draft_params=NETWORK.params, sampling=dj.Sampling(0))
  np.testing.assert_array_equal(out.tokens[:, 1:], slow.tokens)
  assert (out.stats.target_calls < out.stats.emitted).any()
