"""Drafts of a masked-diffusion model: what it reads, and exact texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, tree_decoder
from decoding_jax.speculation.drafters import masked_places
from decoding_jax.speculation.verifiers import shared_gumbel
from decoding_jax.testing import drafter_conformance, exactness
from decoding_jax.types import DecodeState, PAD
from models import tabular
from support import masked_models as toys


V = 6
METHOD = dj.methods.masked_draft((2, 2), window=3)
DRAFT = dj.canvas.as_draft(toys.MODEL, V)


def _state(texts, size=10):
  tokens = np.full((len(texts), size), PAD)
  for row, text in zip(tokens, texts):
    row[:len(text)] = text
  length = jnp.array([len(text) for text in texts], jnp.int32)
  return DecodeState(
      keys=None, step=None, tokens=jnp.asarray(tokens, jnp.int32),
      log_probs=None, length=length, limit=None, done=None, target_cache=None,
      draft_cache=DRAFT.init_cache(len(texts), 0))


def test_reads_the_end_of_the_text_and_masks_after_it():
  texts = [[1], [2, 3, 4], [5, 4, 3, 2, 1]]
  actual = masked_places.read(DRAFT, toys.toy_params(), _state(texts), 3, 2)
  for text, logits in zip(texts, actual):
    last = text[-3:]
    expected = toys.toy_logits(toys.toy_params(), [*last, 6, 6])[len(last):]
    # The mask, the last token of the model, is no token of the target.
    np.testing.assert_allclose(logits, expected[:, :V], rtol=1e-4, atol=1e-5)


def test_all_nodes_of_a_level_have_its_distribution():
  target, params = tabular.TabularLM(np.zeros((V, V)))
  drafter_conformance.check_drafter(
      METHOD.sampled.drafter, target=target, target_params=params, draft=DRAFT,
      draft_params=toys.toy_params(), rows=400)


def test_texts_are_the_targets():
  """And the calls are fewer than tokens, one of the draft for each."""
  target, _ = exactness.random_tables(V)
  lm, params = exactness.table_model(target)
  rows, length = 40_000, 4
  out = dj.generate(
      jax.random.key(0), np.zeros((rows, 1), int), np.ones(rows, int),
      method=METHOD, target=lm, target_params=params, draft=DRAFT,
      draft_params=toys.toy_params(), max_new_tokens=length)
  counts = exactness.count(out.tokens[:, 1:], V)
  probs = exactness.joint_distribution(target, 0, length)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Negative control: the same counts are not those of another target.
  assert exactness.p_value(counts, np.roll(probs, 1, 0)) < 1e-9
  assert out.stats.target_calls.mean() < length
  np.testing.assert_array_equal(out.stats.draft_calls, out.stats.target_calls)


def test_greedy_texts_are_the_targets():
  target, _ = exactness.random_tables(V)
  lm, params = exactness.table_model(target)
  greedy = dict(target=lm, target_params=params, max_new_tokens=8,
                sampling=dj.Sampling(0.0))
  prompts = (jax.random.key(0), np.array([[0, 1, 2], [3, 0, 0]]),
             np.array([3, 1]))
  out = dj.generate(*prompts, method=METHOD, draft=DRAFT,
                    draft_params=toys.toy_params(), **greedy)
  base = dj.generate(*prompts, method=dj.methods.autoregressive(), **greedy)
  np.testing.assert_array_equal(out.tokens, base.tokens)


def test_errors_name_the_argument():
  with pytest.raises(ValueError, match="vocab_size=9: the masked model has 7"):
    dj.canvas.as_draft(toys.MODEL, 9)
  with pytest.raises(ValueError, match="window=0"):
    drafters.masked(expanders.top_k((1,)), 0)
  # It sets no noise that the target could share.
  alike = expanders.product_tree((2,), dj.Draws.SHARED_NOISE)
  with pytest.raises(ValueError, match="Drafter.draws=ARBITRARY"):
    dj.pair(drafters.masked(alike, 3), shared_gumbel.verifier())
  assert tree_decoder.decoder_of(METHOD, greedy=False).needs_draft
