"""Byte-level BPE."""

import pytest
import tokenizers as library

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


@pytest.mark.parametrize("text", ["def f(x):\n\treturn", "naïve 深い \x00\x7f"])
def test_pieces_are_the_bytes_of_the_text(tokenizer, text):
  pieces = tokenizers.pieces(tokenizer, 280)
  assert len(pieces) == 280 and pieces[270:] == [b""] * 10
  ids = tokenizer.encode(text + tokenizers.EOS).ids
  assert pieces[ids[-1]] == b""
  assert b"".join(pieces[i] for i in ids) == text.encode()
  assert {bytes([i]) for i in range(256)} <= set(pieces)


def test_pieces_of_the_sentencepiece_kind():
  vocabulary = {"<unk>": 0, "\u2581cat": 1, "<0xC3>": 2, "s": 3}
  tokenizer = library.Tokenizer(library.models.BPE(
      vocabulary, [], unk_token="<unk>", byte_fallback=True))
  tokenizer.add_special_tokens(["<unk>"])
  tokenizer.decoder = library.decoders.Sequence([
      library.decoders.Replace("\u2581", " "), library.decoders.ByteFallback(),
      library.decoders.Fuse()])
  assert tokenizers.pieces(tokenizer) == [b"", b" cat", b"\xc3", b"s"]


def test_pieces_that_are_not_known(tokenizer):
  with pytest.raises(ValueError, match="vocab_size=269 is less than the 270"):
    tokenizers.pieces(tokenizer, 269)
  other = library.Tokenizer(library.models.WordLevel({"a": 0}, "a"))
  with pytest.raises(ValueError, match="decoder None: the bytes of tokens"):
    tokenizers.pieces(other)


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
