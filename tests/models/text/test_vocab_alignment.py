"""Vocabularies that differ in their padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from models import tabular
from models.text import vocab_alignment

LARGE = np.random.default_rng(0).normal(size=(8, 8))
SMALL = np.random.default_rng(1).normal(size=(6, 6))


def test_cut_logits_are_the_first_ones():
  lm, params = tabular.TabularLM(LARGE)
  small = vocab_alignment.cut(lm, 5)
  assert small.vocab_size == 5
  assert vocab_alignment.cut(lm, 5) is small
  args = (params, jnp.zeros((2, 1), jnp.int32), jnp.zeros((2, 1), jnp.int32),
          lm.init_cache(2, 3), None, 0, jnp.ones((2, 1, 1), bool))
  np.testing.assert_array_equal(small.forward(*args)[0],
                                lm.forward(*args)[0][..., :5])


def test_align_cuts_only_the_larger():
  large, small = tabular.TabularLM(LARGE)[0], tabular.TabularLM(SMALL)[0]
  assert vocab_alignment.align(large, small, 6) == (vocab_alignment.cut(
      large, 6), small)
  assert vocab_alignment.align(small, large,
                               3) == (small, vocab_alignment.cut(large, 6))
  assert vocab_alignment.align(large, large, 6) == (large, large)
  assert vocab_alignment.align(large, None, 6) == (large, None)
  with pytest.raises(ValueError, match="vocab_size=6 of the draft: the token"):
    vocab_alignment.align(large, small, 7)


def test_a_pair_of_different_padding_decodes():
  (target, params), (draft, draft_params) = map(tabular.TabularLM,
                                                (LARGE, SMALL))
  target, draft = vocab_alignment.align(target, draft, 6)
  out = dj.generate(
      jax.random.key(0), np.zeros((4, 1), np.int32), np.ones(4, np.int32),
      method=dj.methods.speculative(depth=1), target=target,
      target_params=params, draft=draft, draft_params=draft_params,
      max_new_tokens=12, sampling=dj.Sampling(temperature=0.0))
  expected = [0]
  for _ in range(12):
    expected.append(int(LARGE[expected[-1], :6].argmax()))
  np.testing.assert_array_equal(out.tokens, [expected] * 4)
