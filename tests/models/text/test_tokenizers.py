"""Byte-level BPE, and the tokenizers of published folders."""

import json

import pytest
import tokenizers as library

from models import checkpoints
from models.huggingface import tensor_files
from models.text import batching, tokenizer_files, tokenizers

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


def test_training(tokenizer):
  assert tokenizer.get_vocab_size() == 270
  assert len(tokenizer.encode("def f").ids) < len("def f")
  assert tokenizers.train(TEXTS, 270).to_str() == tokenizer.to_str()
  with pytest.raises(ValueError, match="vocab_size=256 is too small"):
    tokenizers.train(TEXTS, 256)
  eos = tokenizers.eos_id(tokenizer)
  assert eos == 0
  assert tokenizer.encode("x" + tokenizers.EOS).ids[-1] == eos
  assert tokenizer.decode([eos]) == ""


@pytest.mark.parametrize("text", ["def f(x):\n\treturn", "naïve 深い \x00\x7f"])
def test_pieces_are_the_bytes_of_the_text(tokenizer, text):
  pieces = tokenizers.pieces(tokenizer, 280)
  assert len(pieces) == 280 and pieces[270:] == [b""] * 10
  ids = tokenizer.encode(text + tokenizers.EOS).ids
  assert pieces[ids[-1]] == b"" and pieces[ids[-1]].name == tokenizers.EOS
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


@pytest.mark.parametrize("padding", [
    {"length": 64}, {"direction": "left", "length": 64},
    {"pad_to_multiple_of": 32}])
@pytest.mark.parametrize("truncation", [
    {}, {"stride": 2}, {"direction": "left"}])
def test_truncation_and_padding_of_the_file(tokenizer, tmp_path, truncation,
                                            padding):
  other = library.Tokenizer.from_str(tokenizer.to_str())
  other.enable_truncation(max_length=4, **truncation)
  other.enable_padding(pad_id=0, pad_token=tokenizers.EOS, **padding)
  tokenizers.save(other, tmp_path)
  loaded = tokenizers.load(tmp_path)
  want = tokenizer.encode(TEXTS[0]).ids
  assert len(want) > 4 and loaded.encode(TEXTS[0]).ids == want
  assert [x.ids for x in loaded.encode_batch(TEXTS[:1])] == [want]
  prompts, lengths = batching.encode(loaded, [TEXTS[0], "d"])
  assert prompts[0].tolist() == want and lengths.tolist() == [len(want), 1]


def test_missing_and_damaged_files(tmp_path):
  with pytest.raises(FileNotFoundError, match="No tokenizer at '.*json'"):
    tokenizers.load(tmp_path)
  (tmp_path / tokenizers.FILE).write_text("{}")
  with pytest.raises(ValueError, match="its tokenizer cannot be read"):
    tokenizers.load(tmp_path)


def test_eos_of_a_published_folder(tokenizer, tmp_path):
  """The tokenizer's own settings come first, then those of the model."""
  assert tokenizers.eos_id(tokenizer, tmp_path) == 0
  assert tokenizers.eos_ids(tokenizer, tmp_path) == (0,)
  (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
  assert tokenizers.eos_id(tokenizer, tmp_path) == 7
  (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
  assert tokenizers.eos_id(tokenizer, tmp_path) == 5
  assert tokenizers.eos_ids(tokenizer, tmp_path) == (5, 6)
  (tmp_path / tokenizers.CONFIG).write_text('{"eos_token": {"content": "de"}}')
  end = tokenizer.token_to_id("de")
  assert tokenizers.eos_id(tokenizer, tmp_path) == end
  assert tokenizers.eos_ids(tokenizer, tmp_path) == (end, 5, 6)
  (tmp_path / tokenizers.CONFIG).write_text('{"eos_token": "not an entry"}')
  assert tokenizers.eos_id(tokenizer, tmp_path) == 5


def test_tokenizers_that_differ(tokenizer):
  tokenizers.check_same(tokenizer, tokenizers.train(TEXTS, 270))
  with pytest.raises(ValueError, match="their entry 268 is '.*' and None"):
    tokenizers.check_same(tokenizer, tokenizers.train(TEXTS, 268))
  with pytest.raises(ValueError, match="their entry 257 is '.*' and '.*'"):
    tokenizers.check_same(tokenizer, tokenizers.train(["aaa bbb"] * 9, 262))


def test_size_counts_added_tokens(tokenizer):
  more = tokenizers.train(TEXTS, 270)
  more.add_special_tokens(["<pad>"])
  assert (tokenizers.size(tokenizer), tokenizers.size(more)) == (270, 271)
  # A model without a row for the added one never writes it.
  assert [tokenizers.used_size(more, n) for n in (269, 270, 271, 280)] == [
      271, 270, 271, 271]
  assert tokenizers.pieces(more, 270) == tokenizers.pieces(tokenizer, 270)


def _with_pattern(tokenizer, pattern):
  spec = json.loads(tokenizer.to_str())
  spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
       "invert": False}, {**spec["pre_tokenizer"], "use_regex": False}]}
  return json.dumps(spec)


def test_patterns_that_backtrack_without_end(tokenizer, tmp_path):
  """The library panics, which is no `Exception`."""
  path = tmp_path / tokenizers.FILE
  path.write_text(_with_pattern(tokenizer, "(a+a+)+y"))
  with pytest.raises(ValueError, match="json': its tokenizer cannot be read: "
                     "Onig: Regex search error: retry-limit"):
    tokenizers.load(tmp_path)
  # On other texts than those that a tokenizer is tried with.
  path.write_text(_with_pattern(tokenizer, "(q+q+)+y"))
  loaded = tokenizers.load(tmp_path)
  for encode in (tokenizer_files.encode,
                 lambda tokenizer, text: batching.encode(tokenizer, [text])):
    with pytest.raises(ValueError, match="fails on a text of 64 characters"):
      encode(loaded, "q" * 64)
  path.write_text(_with_pattern(tokenizer, "((("))
  with pytest.raises(ValueError, match="cannot be read: .*parenthesis"):
    tokenizers.load(tmp_path)


def test_a_normalizer_that_grows_is_refused_before_it_runs(tokenizer, tmp_path):
  path = tmp_path / tokenizers.FILE
  fields = json.loads(tokenizer.to_str())
  for size in (5, 1000):
    fields["normalizer"] = {"type": "Sequence", "normalizers": 4 * [{
        "type": "Replace", "pattern": {"String": "a"}, "content": "a" * size}]}
    path.write_text(json.dumps(fields))
    if size == 5:
      assert tokenizers.load(tmp_path).encode("a").ids
  with pytest.raises(ValueError, match="json': its normalizer may make a text "
                     r"1e\+12 times as long; at most 1024 is allowed"):
    tokenizers.load(tmp_path)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path):
  for name, read in ((tokenizers.FILE, tokenizers.load),
                     ("config.json", checkpoints.architecture),
                     ("model.safetensors", tensor_files.tensors),
                     ("pytorch_model.bin", tensor_files.tensors)):
    folder = tmp_path / name[:5]
    folder.mkdir()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=f"{name}' is a pointer of Git LFS"):
      read(folder)


@pytest.mark.parametrize("value, message", [
    ("2", "eos_token_id='2': a value of type int or list"),
    (True, "eos_token_id=True: a value of type int or list"),
    (-1, "eos_token_id=-1: 0 to 2147483647"),
    ([2, None], r"eos_token_id\[1\]=None: a value of type int"),
    ([1] * 100, "eos_token_id has 100 items")])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_eos_ids_of_other_types(tokenizer, tmp_path, file, value, message):
  (tmp_path / file).write_text(json.dumps({"eos_token_id": value}))
  for read in (tokenizers.eos_id, tokenizers.eos_ids):
    with pytest.raises(ValueError, match=f"{file}': {message}"):
      read(tokenizer, tmp_path)


@pytest.mark.parametrize("fields, message", [
    ({"eos_token": ["a"]}, r"eos_token=\['a'\]: a value of type str or dict"),
    ({"eos_token": {}}, "eos_token has no content of type str"),
    ({"add_bos_token": True}, "bos_token must be given, since"),
    ({"add_prefix_space": "yes"}, "add_prefix_space='yes': a value of type")])
def test_settings_of_other_types(tokenizer, tmp_path, fields, message):
  tokenizer.model.save(str(tmp_path))
  (tmp_path / tokenizers.CONFIG).write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=message):
    tokenizers.eos_id(tokenizers.load(tmp_path), tmp_path)


def test_ids_of_a_model_are_copied_with_its_tokenizer(tokenizer, tmp_path):
  source, folder = tmp_path / "source", tmp_path / "copy"
  tokenizers.save(tokenizer, source)
  (source / "config.json").write_text(
      '{"bos_token_id": 1, "eos_token_id": [2, 3]}')
  assert tokenizers.copy(source, folder) == 2
  assert tokenizers.bos_id(tokenizer, folder) == 1
  assert tokenizers.eos_ids(tokenizer, folder) == (2, 3)
  (folder / tokenizers.CONFIG).write_text(
      json.dumps({"bos_token": tokenizers.EOS}))
  assert tokenizers.bos_id(tokenizer, folder) == 0


def test_vocabulary_and_merges(tokenizer, tmp_path):
  """As OPT has them: settings that let a text begin with a token; and GPT-2."""
  tokenizer.model.save(str(tmp_path))
  loaded = tokenizers.load(tmp_path)
  for text in TEXTS + ["naïve 深い木", "  x"]:
    assert loaded.encode(text).ids == tokenizer.encode(text).ids
    assert loaded.decode(loaded.encode(text).ids) == text
  # GPT-2 has no settings, and no token in front.
  ids = tokenizer.encode("def").ids
  assert loaded.encode("def" + tokenizers.EOS).ids == [*ids, 0]
  assert loaded.decode([*ids, 0]) == "def"
  (tmp_path / tokenizers.CONFIG).write_text(json.dumps(
      {"add_bos_token": True, "bos_token": {"content": tokenizers.EOS},
       "eos_token": {"content": tokenizers.EOS}, "pad_token": "<pad>"}))
  loaded = tokenizers.load(tmp_path)
  assert loaded.encode("def").ids == [0, *tokenizer.encode("def").ids]
  assert loaded.encode("<pad>").ids == [0, 270]
  assert loaded.decode(loaded.encode("def").ids) == "def"
  assert tokenizers.eos_id(loaded, tmp_path) == 0
