"""What prompts begin with in common, found and kept once."""

import types

import numpy as np
import pytest

import decoding_jax as dj
from experiments.devices import shared_prefix
from support import helpers, tiny_tasks


@pytest.mark.parametrize("common, expected", [
    (0, 0), (31, 0), (32, 32), (63, 32), (300, 288), (600, 576), (2048, 2048),
    (2100, 2048)])
def test_length_is_rounded_down(common, expected):
  texts = [[1] * common + own for own in ([2, 3], [4], [5, 5, 5])]
  lengths = np.array(list(map(len, texts)))
  prompts = np.zeros((3, lengths.max()), int)
  for row, text in zip(prompts, texts):
    row[:len(text)] = text
  assert shared_prefix.length(prompts, lengths) == expected
  assert shared_prefix.of_texts(texts) == expected
  assert shared_prefix.of_texts(texts[:1]) == 0


def test_each_prompt_keeps_a_token_of_its_own():
  assert shared_prefix.length(np.ones((2, 90), int), np.array([64, 90])) == 32
  assert shared_prefix.length(np.ones((2, 90), int), np.array([65, 90])) == 64


def test_a_batch_shares_where_that_saves_something():
  prompts, lengths = np.ones((4, 70), int), np.full(4, 70)
  pair = lambda share=99, reads=True, mesh=None: types.SimpleNamespace(
      share=share, target=types.SimpleNamespace(reads_shared=reads), mesh=mesh,
      draft=None)
  got = lambda pair, rows=None: shared_prefix.of_batch(pair, prompts, lengths,
                                                       rows)
  assert got(pair()) == got(pair(), 2) == 64
  assert got(pair(share=32)) == 32
  assert got(pair(share=0)) == got(pair(reads=False)) == 0
  assert got(pair(), rows=1) == 0
  of_rows = lambda data: pair(mesh=types.SimpleNamespace(shape={"data": data}))
  assert (got(of_rows(2)), got(of_rows(4))) == (64, 0)


@pytest.mark.long
def test_texts_are_the_same(folders, monkeypatch):
  monkeypatch.setattr(shared_prefix, "_LEAST", 2)
  pair, shared, decode = helpers.load_pair(*folders), [], dj.generate

  def spy(*args, shared_prefix=None, **kwargs):
    shared.append(shared_prefix)
    return decode(*args, shared_prefix=shared_prefix, **kwargs)

  monkeypatch.setattr(dj, "generate", spy)
  run = lambda pair: tiny_tasks.decoded(
      pair, dj.methods.rsd_s(2, 1), temperature=1.0,
      lengths=np.array([5, 4, 5]),
      prompts=np.array([[3, 1, 4, 1, 5], [3, 1, 4, 2, 6], [3, 1, 4, 8, 8]]))
  helpers.check_same(run(pair._replace(share=9)), run(pair))
  assert shared[0].tolist() == [3, 1] and shared[1] is None
