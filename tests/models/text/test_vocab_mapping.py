"""Drafters with another tokenizer: which tokens are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as tokenizers_lib
from tokenizers import decoders

import decoding_jax as dj
from decoding_jax.testing import exactness
from models import tabular
from models.text import tokenizers, vocab_mapping

V, ROWS = 5, 1000


def words(vocabulary, decoder=None):
  tokenizer = tokenizers_lib.Tokenizer(tokenizers_lib.models.BPE(
      {text: i for i, text in enumerate(vocabulary)}, []))
  tokenizer.decoder = decoder
  return tokenizer


def sentencepiece(vocabulary):
  return words(vocabulary, decoders.Sequence([decoders.ByteFallback()]))


def byte_level(vocabulary):
  return words(vocabulary, decoders.ByteLevel())


def table(target, draft, **kwargs):
  return vocab_mapping.table(target, draft, tokenizers.size(target),
                             tokenizers.size(draft), **kwargs)


def test_spaces_are_the_same_however_they_are_spelled():
  result = table(byte_level(["a", "\u0120a", "\u0120b"]),
                 sentencepiece(["b", "\u2581b", "\u2581a", "a"]))
  assert result.ids.tolist() == [3, 2, 1]
  assert result.common.all()


def test_a_byte_is_drafted_by_one_token():
  """Two tokens of the draft, or of the target, that add the same byte."""
  ours, theirs = byte_level(["A", "B"]), sentencepiece(["B", "A", "<0x41>"])
  assert table(ours, theirs).ids.tolist() == [1, 0]
  result = table(theirs, ours)
  assert result.ids.tolist() == [1, 0, 0]
  assert result.common.tolist() == [True, True, False]


def test_a_token_that_the_draft_lacks_is_read_as_its_last_piece():
  """Control: one that has no piece at all is read as token 0."""
  result = table(byte_level(["ab", "c", "d"]), byte_level(["d", "a", "b"]))
  assert result.ids.tolist() == [2, 0, 0]
  assert result.common.tolist() == [False, False, True]


def test_special_tokens_are_the_same_by_name_or_as_the_end():
  ours, theirs = byte_level(["a", "</s>", "<b>"]), byte_level(
      ["<end>", "a", "</s>"])
  ours.add_special_tokens(["</s>", "<b>"])
  theirs.add_special_tokens(["<end>"])
  # Of the draft "</s>" is text.
  assert table(ours, theirs).common.tolist() == [True, False, False]
  result = table(ours, theirs, ends=[(1, 0)])
  assert result.common.tolist() == [True, True, False]
  assert result.ids.tolist()[:2] == [1, 0]


def test_tokenizers_without_bytes_are_compared_by_their_strings():
  result = table(words(["\u2581a", "b"]), words(["b", "\u0120a"]))
  assert result.ids.tolist() == [1, 0] and result.common.all()


def test_added_tokens_that_a_model_has_no_rows_for():
  ours, theirs = byte_level(["a", "b"]), byte_level(["b", "a"])
  for tokenizer in (ours, theirs):
    tokenizer.add_special_tokens(["<p>", "</s>"])
  result = vocab_mapping.table(ours, theirs, 4, 2, ends=[(3, 3)])
  assert result.common.tolist() == [True, True, False, False]
  assert result.ids.tolist() == [1, 0, 0, 0]
  assert vocab_mapping.table(ours, theirs, 2, 4).ids.tolist() == [1, 0]


@pytest.mark.parametrize("sizes, message", [
    ((1, 2), "vocab_size=1 of the target: its tokenizer has 2 entries"),
    ((2, 1), "vocab_size=1 of the draft: its tokenizer has 2 entries"),
    ((2, 2), "no token of the draft's tokenizer is one of the target's")])
def test_vocabularies_that_do_not_fit(sizes, message):
  with pytest.raises(ValueError, match=message):
    vocab_mapping.table(words(["a", "b"]), words(["c", "d"]), *sizes)


def mapped(draft_table, ids, common):
  lm, params = tabular.TabularLM(draft_table)
  return (vocab_mapping.mapped(lm, len(ids)), vocab_mapping.MappedParams(
      params, vocab_mapping.Table(jnp.asarray(ids, jnp.int32),
                                  jnp.asarray(common))))


def test_logits_are_those_of_the_common_tokens():
  draft = np.array([[1., 2, 3], [-np.inf, 5, -np.inf], [4, 5, 6]])
  lm, params = mapped(draft, [2, 1, 0, 0], [True, False, True, False])
  tokens = jnp.array([[0, 1, 2]], jnp.int32)
  logits, _ = lm.forward(params, tokens, tokens, lm.init_cache(1, 1),
                         dj.Block((), ()), 0, None)
  none = -np.inf
  np.testing.assert_array_equal(logits[0], [
      [6, none, 4, none], [0, none, 0, none], [3, none, 1, none]])


def test_a_permuted_target_is_accepted_always():
  """Control: by the table of another permutation, at times."""
  probs, _ = exactness.random_tables(V)
  order, everything = np.array([3, 0, 6, 1, 2]), np.ones(V, bool)
  permuted = np.full((7, 7), -3.0)
  permuted[np.ix_(order, order)] = np.log(probs)
  target, params = exactness.table_model(probs)

  def calls(order):
    draft, draft_params = mapped(permuted, order, everything)
    return np.asarray(dj.generate(
        jax.random.key(0), np.zeros((ROWS, 1), np.int32),
        np.ones(ROWS, np.int32), method=dj.methods.rsd_s(2, 2), target=target,
        target_params=params, draft=draft, draft_params=draft_params,
        max_new_tokens=4).stats.target_calls)

  assert calls(order).max() == 2
  assert calls(order[::-1]).mean() > 2.2
