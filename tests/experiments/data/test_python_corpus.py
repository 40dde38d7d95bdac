"""The corpus and its split."""

import numpy as np
import pytest

from experiments.data import python_corpus
from models.text import tokenizers


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer():
  return tokenizers.train(["def f(self):\n    return self\n"], 260)


@pytest.fixture(name="root")
def _root(tmp_path):
  for i in range(64):
    folder = tmp_path / f"package_{i % 4}"
    folder.mkdir(exist_ok=True)
    lines = [f"value_{i}_{j} = {i * j}" for j in range(6)]
    (folder / f"module_{i}.py").write_text("\n\n".join(lines) + "\n")
  return str(tmp_path)


def test_split_is_stable():
  # These may never move: the shipped models were trained without them.
  for split, names in (
      (python_corpus.HELD_OUT, ("calendar", "dataclasses", "email.utils",
                                "http.server")),
      (python_corpus.TRAIN, ("ast", "json"))):
    assert {python_corpus.split_of(name) for name in names} == {split}


def test_splits_are_disjoint_and_complete(root):
  train, held_out = (dict(python_corpus.modules(split, root))
                     for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))
  assert held_out and not set(train) & set(held_out)
  assert len(train) + len(held_out) == 64
  assert {*map(python_corpus.split_of, held_out)} == {python_corpus.HELD_OUT}


def test_standard_library():
  train, held_out = (python_corpus.modules(split)
                     for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))
  sizes = [sum(len(text) for _, text in texts) for texts in (train, held_out)]
  assert sum(sizes) > 4e6
  assert 0.02 < sizes[1] / sum(sizes) < 0.15
  names = [name for name, _ in train + held_out]
  assert len(names) == len(set(names))
  assert {"ast", "json", "asyncio.tasks"} <= set(names)
  assert not any("test" in name.split(".") for name in names)


def test_packages_go_by_their_name(tmp_path):
  for part in ("test", "site-packages", "encodings", "calendar"):
    (tmp_path / part).mkdir()
    (tmp_path / part / "__init__.py").write_text("x = 1\n")
  assert python_corpus.modules(python_corpus.HELD_OUT, str(tmp_path)) == [
      ("calendar", "x = 1\n")]


def test_encode_ends_every_module(root, tokenizer):
  tokens = python_corpus.encode(tokenizer, python_corpus.HELD_OUT, root)
  texts = python_corpus.modules(python_corpus.HELD_OUT, root)
  ends = np.flatnonzero(tokens == tokenizers.eos_id(tokenizer))
  assert tokens.dtype == np.int32
  assert len(ends) == len(texts) and ends[-1] == len(tokens) - 1
  assert tokenizer.decode(tokens[:ends[0]]) == texts[0][1]


def test_prompts_start_at_lines(root, tokenizer):
  lines = [line for _, text in python_corpus.modules(
      python_corpus.HELD_OUT, root) for line in text.splitlines()]
  for prompt in python_corpus.prompts(tokenizer, 10, 14, root=root):
    assert len(prompt) == 14
    text = tokenizer.decode(prompt).split("\n")[0]
    assert text and any(line.startswith(text) for line in lines)


def test_more_prompts_extend_fewer(root, tokenizer):
  few, many = (python_corpus.prompts(tokenizer, count, 20, seed=3, root=root)
               for count in (4, 9))
  assert many[:4] == few
  assert python_corpus.prompts(tokenizer, 4, 20, seed=4, root=root) != few
  assert len({tuple(prompt) for prompt in many}) == 9
  # References follow prompts.
  prompts = python_corpus.prompts(tokenizer, 5, 14, 7, root=root)
  assert prompts == [x[:14] for x in python_corpus.prompts(
      tokenizer, 5, 21, root=root)]


def test_what_is_not_there_is_told(root, tokenizer, tmp_path):
  for error, message, call in (
      (ValueError, "prompts=10000 are .* only", lambda: python_corpus.prompts(
          tokenizer, 10000, 5, root=root)),
      (FileNotFoundError, "No held-out module", lambda: python_corpus.modules(
          python_corpus.HELD_OUT, str(tmp_path / "nothing")))):
    with pytest.raises(error, match=message):
      call()
