"""SentencePiece models against the package that made them."""

import io
import json

import pytest

from models.text import sentencepiece, tokenizers

spm = pytest.importorskip("sentencepiece",
                          reason="needs pip install -e '.[hf]'")

TEXTS = ["the cat sat on the mat", "a cat and a bat", "the rat ate the hat",
         "that is what it is", "naïve café", "def f(x): return x + 1"] * 5
UNSEEN = ["the mat that the cat ate", "zebra?", "naïve 深い木 🌳", " leading",
          "two  spaces   three", "", "a\nnew line", "x1+2=3"]


def train(folder, **options):
  """Writes a model as Llama has it; returns what the package makes of it."""
  model = io.BytesIO()
  spm.SentencePieceTrainer.train(**{
      "sentence_iterator": iter(TEXTS), "model_writer": model,
      "vocab_size": 300, "model_type": "bpe", "byte_fallback": True,
      "normalization_rule_name": "identity", "hard_vocab_limit": False,
      "remove_extra_whitespaces": False, "minloglevel": 2, **options})
  (folder / sentencepiece.FILE).write_bytes(model.getvalue())
  return spm.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("options", [
    {}, {"add_dummy_prefix": False}, {"model_type": "unigram"},
    {"byte_fallback": False}, {"user_defined_symbols": ["<sep>"]},
    {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
], ids=str)
def test_same_tokens_as_the_package(tmp_path, options):
  theirs = train(tmp_path, **options)
  (tmp_path / tokenizers.CONFIG).write_text('{"add_bos_token": false}')
  ours = tokenizers.load(tmp_path)
  assert tokenizers.size(ours) == theirs.get_piece_size()
  for text in TEXTS + UNSEEN:
    ids = ours.encode(text).ids
    assert ids == theirs.encode(text), text
    if options.get("byte_fallback", True):
      assert ours.decode(ids) == theirs.decode(ids)


def test_begins_with_bos_unless_told(tmp_path):
  theirs = train(tmp_path)
  ids = theirs.encode("a cat")
  assert tokenizers.load(tmp_path).encode("a cat").ids == [1, *ids]
  path = tmp_path / tokenizers.CONFIG
  path.write_text(json.dumps({"add_bos_token": False, "eos_token": "</s>"}))
  ours = tokenizers.load(tmp_path)
  assert ours.encode("a cat").ids == ids
  assert tokenizers.eos_id(ours, tmp_path) == 2
  assert ours.decode([1, *ids, 2]) == "a cat"


def test_saved_as_json_it_is_the_same(tmp_path):
  train(tmp_path)
  ours = tokenizers.load(tmp_path)
  tokenizers.save(ours, tmp_path)
  (tmp_path / sentencepiece.FILE).unlink()
  for text in TEXTS + UNSEEN:
    assert tokenizers.load(tmp_path).encode(text).ids == ours.encode(text).ids


@pytest.mark.parametrize("content, message", [
    (b"\xff" * 40, "tokenizer.model' is damaged"),
    (b"", "with 0 pieces; BPE and unigram models"),
])
def test_damaged(tmp_path, content, message):
  (tmp_path / sentencepiece.FILE).write_bytes(content)
  with pytest.raises(ValueError, match=message):
    tokenizers.load(tmp_path)


def test_other_kinds_are_refused(tmp_path):
  train(tmp_path, model_type="char")
  with pytest.raises(ValueError, match="model_type=4 with"):
    tokenizers.load(tmp_path)
