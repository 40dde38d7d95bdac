"""Byte-level BPE."""

import pytest

from models import tokenizers

TEXTS = ["def f(x):\n    return x\n", "def g(y):\n    return f(y)\n"] * 4


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer():
  return tokenizers.train(TEXTS, 270)


@pytest.mark.parametrize("text", [
    "", " ", "def f(x):\n        return x", "\t\r\n \n", "naïve — 深い木 🌳",
    "e\u0301 is not \u00e9", "\x00\x7f\ufffd", "trailing   ",
])
def test_every_text_survives(tokenizer, text):
  assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_merges_are_learned(tokenizer):
  assert tokenizer.get_vocab_size() == 270
  assert len(tokenizer.encode("def f").ids) < len("def f")


def test_eos_is_one_token(tokenizer):
  eos = tokenizers.eos_id(tokenizer)
  assert eos == 0
  assert tokenizer.encode("x" + tokenizers.EOS).ids[-1] == eos
  assert tokenizer.decode([eos]) == ""


def test_training_is_reproducible(tokenizer):
  assert tokenizers.train(TEXTS, 270).to_str() == tokenizer.to_str()


def test_save_and_load(tokenizer, tmp_path):
  tokenizers.save(tokenizer, tmp_path / "new")
  assert tokenizers.load(tmp_path / "new").to_str() == tokenizer.to_str()
  assert [p.name for p in (tmp_path / "new").iterdir()] == [tokenizers.FILE]


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError, match="No tokenizer at '.*json'"):
    tokenizers.load(tmp_path)


def test_vocabulary_too_small():
  with pytest.raises(ValueError, match="vocab_size=256 is too small"):
    tokenizers.train(TEXTS, 256)
