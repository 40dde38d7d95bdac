"""Texts as arrays, and arrays as texts."""

import numpy as np
import pytest
import tokenizers as library

import decoding_jax as dj
from models.text import batching, tokenizers

TOKENIZER = tokenizers.train(["a cat sat on a mat"] * 3, 270)


def generation(tokens, lengths):
  return dj.Generation(np.array(tokens), np.array(lengths), None, None)


def test_there_and_back():
  words = ["a cat", "a mat sat on", "ü"]
  prompts, lengths = batching.encode(TOKENIZER, words)
  assert prompts.dtype == lengths.dtype == np.int32
  assert prompts.shape == (3, lengths.max())
  assert [row[:n].tolist() for row, n in zip(prompts, lengths)] == [
      TOKENIZER.encode(word).ids for word in words]
  assert (prompts[np.arange(prompts.shape[1]) >= lengths[:, None]] == 0).all()
  out = generation(prompts, lengths)
  assert batching.decode(TOKENIZER, out, np.zeros(3, int)) == words
  assert batching.decode(TOKENIZER, out, lengths) == [""] * 3
  # Tokens are taken as they are.
  prompts, lengths = batching.encode(TOKENIZER, [[5, 6, 7], "a", (8,)])
  assert prompts[0].tolist() == [5, 6, 7] and lengths.tolist()[::2] == [3, 1]


def test_only_what_follows_a_prompt_is_decoded_up_to_its_end():
  ids = TOKENIZER.encode("a cat sat").ids
  eos = tokenizers.eos_id(TOKENIZER)
  out = generation([[9, 9, *ids, eos, 9]], [3 + len(ids)])
  assert batching.decode(TOKENIZER, out, [2]) == ["a cat sat"]


@pytest.mark.parametrize("given, words", [
    ("a cat", "a list of texts"), ([], "texts is empty"),
    (["a", ""], r"texts\[1\] is empty"), ([[]], r"texts\[0\] is empty")])
def test_what_is_no_prompt(given, words):
  with pytest.raises(ValueError, match=words):
    batching.encode(TOKENIZER, given)


def test_lengths_of_other_rows():
  with pytest.raises(ValueError, match=r"shape \(1,\): one for each of 2 rows"):
    batching.decode(TOKENIZER, generation([[1], [2]], [1, 1]), [1])


def test_a_stream_of_texts_is_settled_and_complete():
  """Two rows, one token a step: bytes wait for the rest of their character."""
  texts = ["a caté 深い 🌳 mat", "ü sat"]
  rows = [TOKENIZER.encode(text).ids for text in texts]
  width = max(map(len, rows))
  tokens = [[7] + row + [0] * (width - len(row)) for row in rows]
  outs = [generation(tokens, [1 + min(n, len(row)) for row in rows])
          for n in range(width + 1)]
  parts = [parts for _, parts in batching.stream(TOKENIZER, outs, [1, 1])]
  assert len(parts) == len(outs) + 1
  assert ["".join(row) for row in zip(*parts)] == texts
  assert not any("\ufffd" in part for row in parts for part in row)
  # The tree has four bytes, of which three add nothing.
  assert sum(part == "" for part, _ in parts) > 6
  assert not list(batching.stream(TOKENIZER, [], [1]))


def sentencepiece():
  """A tokenizer of which a text begins without a blank, with byte fallback."""
  vocabulary = {x: i for i, x in enumerate(
      ["<s>", "<unk>", *(f"<0x{i:02X}>" for i in range(256)),
       *"\u2581abcdefghijklmnopqrstuvwxyz():"])}
  made = library.Tokenizer(library.models.BPE(
      vocabulary, [], unk_token="<unk>", byte_fallback=True))
  made.normalizer = library.normalizers.Sequence([
      library.normalizers.Prepend("\u2581"),
      library.normalizers.Replace(" ", "\u2581")])
  made.decoder = library.decoders.Sequence([
      library.decoders.Replace("\u2581", " "), library.decoders.ByteFallback(),
      library.decoders.Fuse(), library.decoders.Strip(" ", 1, 0)])
  made.add_special_tokens(["<s>"])
  return made


@pytest.mark.parametrize("prompt, rest", [
    ("is", " a"), ("def f(x):\n", "  return"), ("é 木", " a"), ("木", "é x"),
    ("", "a b"), ("  ", "  a"), ("a ", "b")])
@pytest.mark.parametrize("first", [[], [0]], ids=["plain", "bos"])
@pytest.mark.parametrize("make", [sentencepiece, lambda: TOKENIZER],
                         ids=["sentencepiece", "bytes"])
def test_prompt_and_text_are_the_text_of_all_tokens(make, first, prompt, rest):
  tokenizer = make()
  before, ids = ([*first, *tokenizer.encode(x).ids]
                 for x in (prompt, prompt + rest))
  tokens, length = [ids], len(before)
  outs = [generation(tokens, [n]) for n in range(length, len(ids) + 1)]
  [result] = batching.decode(tokenizer, outs[-1], [length])
  assert prompt + result == tokenizer.decode(ids) == prompt + rest
  parts = [part for _, [part] in batching.stream(tokenizer, outs, [length])]
  assert "".join(parts) == result and not any("\ufffd" in x for x in parts)
  # Bytes of a character that the prompt began are no reason to fail.
  half = tokenizer.encode("x木").ids
  [text] = batching.decode(tokenizer, generation([half], [len(half)]),
                           [len(half) - 1])
  assert text == "\ufffd"


def test_a_stream_ends_with_what_was_held_back():
  ids = TOKENIZER.encode("a 木").ids[:-1]
  outs = [generation([ids], [len(ids)])]
  [(_, [first]), (_, [last])] = batching.stream(TOKENIZER, outs, [0])
  assert first == "a " and set(last) == {"\ufffd"}
