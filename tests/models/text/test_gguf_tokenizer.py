"""Vocabularies in GGUF files against transformers, on generated texts."""

import io
import json
import random
import re

import numpy as np
import pytest
import tokenizers as library

from models.text import chat_template, tokenizers
from support import gguf_writer

gguf = gguf_writer.gguf
_PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
TEXTS = ["the cat sat on the mat", "a cat and a bat", "that is what it is",
         "naïve café 1234", "def f(x):\n    return x + 1\n", "it's a RAT"] * 3
# What tokenizers disagree about: code, Unicode, emoji, white space, chats.
PIECES = (
    "the", " cat", "Hat", "  ", "\n", "\t", " 123", "4.5", "2024", "é", "深い",
    "العربية", "🙂", "👩‍👩‍👧", "def f(x):\n    return x+1\n", "'s", "don't",
    "I'LL", "<|user|>", "<|end|>\n", "<sep>", "\u00a0", "\u200b", "x_y", "---",
    ' {"a": [1, 2]}', "\r\n", "ﬁ", "e\u0301", "a" * 20, "\n\n\n", "    ",
    "ABCd",
    "ç", "한국어", "\u2581", "�", "#", "")
TEMPLATE = ("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")


def texts(number):
  rng = random.Random(0)
  return ["".join(rng.choices(PIECES, k=rng.randint(0, 12)))
          for _ in range(number)]


def write(path, arch, model, tokens, types, fields=(), **lists):
  """Writes a file that has a vocabulary and one small tensor."""
  writer = gguf.GGUFWriter(path, arch)
  writer.add_context_length(16)
  writer.add_embedding_length(4)
  writer.add_block_count(1)
  writer.add_head_count(1)
  writer.add_layer_norm_rms_eps(1e-5)
  writer.add_vocab_size(len(tokens))
  writer.add_tokenizer_model(model)
  writer.add_token_list(tokens)
  writer.add_token_types(types)
  writer.add_chat_template(TEMPLATE)
  for name, value in lists.items():
    writer.add_array(_PREFIX + name, value)
  for setter, *args in fields:
    getattr(writer, setter)(*args)
  writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 4), np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def byte_level(path, pre, **kwargs):
  """Writes a byte-level vocabulary with special tokens and padding."""
  spec = json.loads(tokenizers.train(TEXTS, 330).to_str())["model"]
  tokens = sorted(spec["vocab"], key=spec["vocab"].get)
  types = [CONTROL] + [NORMAL] * (len(tokens) - 1)
  for token, kind in (("<|user|>", CONTROL), ("<|end|>", CONTROL),
                      ("<sep>", USER), ("[PAD333]", UNUSED)):
    tokens.append(token)
    types.append(kind)
  merges = [" ".join(merge) for merge in spec["merges"]]
  return write(path, "qwen2", "gpt2", tokens, types, [
      ("add_tokenizer_pre", pre), ("add_eos_token_id", len(tokens) - 3),
      *kwargs.get("fields", ())], merges=merges)


def sentencepiece(path, arch, **options):
  """Writes the vocabulary of a SentencePiece model; returns that too."""
  spm = pytest.importorskip("sentencepiece",
                            reason="needs pip install -e '.[hf]'")
  model = io.BytesIO()
  spm.SentencePieceTrainer.train(
      sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=330,
      model_type="bpe", byte_fallback=True, hard_vocab_limit=False,
      remove_extra_whitespaces=False, normalization_rule_name="identity",
      control_symbols=["<|user|>", "<|end|>"], user_defined_symbols=["<sep>"],
      minloglevel=2, **options)
  theirs = spm.SentencePieceProcessor(model_proto=model.getvalue())
  ids = range(theirs.get_piece_size())
  types = [UNKNOWN if theirs.is_unknown(i) else CONTROL if theirs.is_control(i)
           else BYTE if theirs.is_byte(i) else NORMAL for i in ids]
  tokens = [theirs.id_to_piece(i) for i in ids]
  types[tokens.index("<sep>")] = USER
  prefixed = options.get("add_dummy_prefix", True)
  return write(path, arch, "llama", tokens, types, [
      ("add_bos_token_id", 1), ("add_eos_token_id", 2),
      ("add_unk_token_id", 0), ("add_add_bos_token", True),
      ("add_add_space_prefix", prefixed)],
               scores=[theirs.get_score(i) for i in ids]), theirs


@pytest.mark.long
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken",
                                 "gpt-4o"])
def test_byte_level_tokens_are_those_of_transformers(tmp_path, pre):
  check_same(byte_level(tmp_path / "model.gguf", pre), pre)


@pytest.mark.long
def test_sentencepiece_tokens_are_those_of_transformers(tmp_path):
  check_same(sentencepiece(tmp_path / "model.gguf", "gemma3",
                           add_dummy_prefix=False)[0], "gemma3")


def test_sentencepiece_tokens_are_those_of_sentencepiece(tmp_path):
  path, theirs = sentencepiece(tmp_path / "model.gguf", "llama")
  ours = tokenizers.load(path)
  for text in texts(1000):
    expected = [theirs.bos_id()]
    # Each part between special tokens is a text, as in llama.cpp.
    for part in re.split(r"(<\|user\|>|<\|end\|>|<sep>)", text):
      known = ours.token_to_id(part) if part.startswith("<") else None
      expected += theirs.encode(part) if known is None else [known]
    ids = ours.encode(text).ids
    assert ids == expected, text
    if "<" not in text:
      assert ours.decode(ids) == text.replace("\u2581", " ")


def check_same(path, kind):
  """Compares the tokens of 1,000 texts; and what they are decoded to."""
  transformers = pytest.importorskip(
      "transformers", reason="needs pip install -e '.[parity]'")
  ours = tokenizers.load(path)
  theirs = transformers.AutoTokenizer.from_pretrained(
      path.parent, gguf_file=path.name)
  if kind == "qwen2":
    # As `transformers.Qwen2Tokenizer` has it; of this file it reads none.
    theirs.backend_tokenizer.normalizer = library.normalizers.NFC()
  for text in texts(1000):
    ids = ours.encode(text).ids
    assert ids == theirs(text)["input_ids"], (kind, text)
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_control_patterns_differ(tmp_path):
  files = [byte_level(tmp_path / f"{pre}.gguf", pre)
           for pre in ("gpt-2", "llama-bpe", "qwen2", "tekken", "smollm")]
  readers = [tokenizers.load(path) for path in files]
  results = [[x.encode(text).ids for text in texts(100)] for x in readers]
  assert all(results[i] != results[j] for i in range(5) for j in range(i))


def test_settings_and_chat_template(tmp_path):
  path = byte_level(tmp_path / "model.gguf", "smollm")
  tokenizer = tokenizers.load(path)
  end = tokenizer.token_to_id("<|end|>")
  assert tokenizers.has(path) and tokenizers.eos_id(tokenizer, path) == end
  assert tokenizers.eos_ids(tokenizer, path) == (end,)
  # What only fills the vocabulary up is no token; digits stand alone.
  assert tokenizer.token_to_id("[PAD333]") is None
  assert tokenizer.encode("a 12<sep>").tokens == ["a", "Ġ", "1", "2", "<sep>"]
  encode = chat_template.encoder(path, tokenizer)
  assert encode([{"role": "user", "content": "a"}]).tokens == [
      "<|user|>", "a", "<|end|>"]
  tokenizers.copy(path, tmp_path / "folder")
  again = tokenizers.load(tmp_path / "folder")
  assert tokenizers.eos_ids(again, tmp_path / "folder") == (end,)
  assert chat_template.encoder(tmp_path / "folder", again)(
      [{"role": "user", "content": "a"}]).ids == encode(
          [{"role": "user", "content": "a"}]).ids


@pytest.mark.parametrize("pre, fields, error", [
    ("viking", [], "tokenizer.ggml.pre='viking' is not one of code"),
    ("gpt-2", [("add_string", _PREFIX + "new", "x")],
     "tokenizer.ggml.new='x' is not supported"),
    ("gpt-2", [("add_add_eos_token", True)],
     "tokenizer.ggml.add_eos_token=True is not supported"),
    ("gpt-2", [("add_bos_token_id", 999)],
     "tokenizer.ggml.bos_token_id=999: 0 to 317 is allowed"),
])
def test_what_is_unknown_is_named(tmp_path, pre, fields, error):
  path = byte_level(tmp_path / "model.gguf", pre, fields=fields)
  with pytest.raises(ValueError, match=error):
    tokenizers.load(path)


@pytest.mark.parametrize("key, value, error", [
    ("token_type", ["a", "b"], "token_type must have numbers, one for each of"),
    ("model", ["gpt2"], r"model=\['gpt2'\] is not one of gpt2, llama"),
    ("pre", ["gpt-2"], "pre=.*gpt-2.* is not one of codeshell"),
    ("merges", [1, 2], "merges has '1', which is no pair")])
def test_values_of_another_type(tmp_path, key, value, error):
  own = gguf.GGUFWriter.add_key_value

  def changed(self, name, given, *more, **kwargs):
    if name != _PREFIX + key:
      own(self, name, given, *more, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gguf.GGUFWriter, "add_key_value", changed)
    writer = lambda self: own(self, _PREFIX + key, value,
                              gguf.GGUFValueType.ARRAY)
    patch.setattr(gguf.GGUFWriter, "add_other", writer, raising=False)
    path = write(tmp_path / "a.gguf", "llama", "gpt2", ["a", "b"], [NORMAL] * 2,
                 [("add_tokenizer_pre", "gpt-2"), ("add_other",)])
  with pytest.raises(ValueError, match=error):
    tokenizers.load(path)


@pytest.mark.parametrize("model, tokens, merges, error", [
    ("t5", "a", [], "model='t5' is not one of gpt2, llama"),
    ("gpt2", "ab", ["a c"], "merges has 'a c', which is no pair of"),
    ("gpt2", "aba", [], "tokens has 'a' more than once")])
def test_other_vocabularies_are_named(tmp_path, model, tokens, merges, error):
  path = write(tmp_path / "a.gguf", "llama", model, [*tokens],
               [NORMAL] * len(tokens), [("add_tokenizer_pre", "gpt-2")],
               **({"merges": merges} if merges else {}))
  with pytest.raises(ValueError, match=error):
    tokenizers.load(path)


def test_bos_begins_a_text_where_the_file_says_so(tmp_path):
  for number, (pre, told, expected) in enumerate((
      ("llama-bpe", None, True), ("qwen2", None, False),
      ("llama-bpe", False, False), ("qwen2", True, True))):
    fields = [("add_bos_token_id", 0)]
    fields += [] if told is None else [("add_add_bos_token", told)]
    path = byte_level(tmp_path / f"{number}.gguf", pre, fields=fields)
    ids = tokenizers.load(path).encode("a cat").ids
    assert (ids[0] == 0) == expected
