"""A reward model as a function of texts."""

import jax
import numpy as np
import pytest

from models import transformer
from models.text import text_scorer, tokenizers
from support import tiny_models as tiny

SIZES = transformer.Config(
    vocab_size=280, dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
    head_dim=4, hidden_dim=8, max_length=9, tie_embeddings=False, outputs=1)


def test_scores_are_outputs_at_the_ends_of_the_texts():
  tokenizer = tokenizers.train(["a rose is a rose"] * 3, 280)
  params = tiny.init(jax.random.key(1), SIZES)
  lm = transformer.language_model(SIZES)
  prompts, texts = ["a rose", "", "is", "x" * 20], ["", "", " a", " is a rose"]
  result = text_scorer.scorer(lm, params, tokenizer, 9)(texts, prompts)
  # A text without tokens is read as token 0.
  for value, prompt, text in zip(result, prompts, texts):
    ids = tokenizer.encode(prompt + text).ids[-9:] or [0]
    outputs = transformer.causal_logits(lm, params, np.array([ids], np.int32))
    np.testing.assert_allclose(value, outputs[0, -1, 0], rtol=1e-5)
  assert len(set(result.tolist())) == 4


def test_more_tokens_than_the_model_reads():
  lm = transformer.language_model(SIZES)
  with pytest.raises(ValueError, match="capacity=10: 1 to 9"):
    text_scorer.scorer(lm, {}, None, 10)
