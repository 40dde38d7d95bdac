"""Prompt lookup and suffix decoding: what they propose."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation.drafters import text_matches

METHODS = [dj.methods.prompt_lookup(2, 2), dj.methods.suffix(5, 2, 6, 2, 0.0)]


def occurrences(text, count, max_ngram, depth, room=3):
  padded = jnp.array([*text, *(-1,) * room], jnp.int32)
  result = text_matches.occurrences(padded, len(text), count, max_ngram, depth)
  return [np.asarray(x) for x in result]


def test_longest_and_latest_occurrences_come_first():
  #        0  1  2  3  4  5  6  7  8  9
  text = [1, 2, 7, 1, 2, 8, 0, 2, 9, 1, 2]
  matched, paths, alive = occurrences(text, 4, 3, 2)
  assert matched.tolist() == [2, 2, 1, 0]
  assert paths[:3].tolist() == [[8, 0], [7, 1], [9, 1]]
  assert alive.tolist() == [[True] * 2] * 3 + [[False] * 2]


def test_a_continuation_ends_with_the_text():
  matched, paths, alive = occurrences([4, 4, 4], 2, 2, 3)
  assert matched.tolist() == [2, 1]
  assert alive.tolist() == [[True, False, False], [True, True, False]]
  assert (paths[alive] == 4).all()


def propose(text, method):
  """Tree of one row, as (path of tokens) of each valid node."""
  drafter = method.sampled.drafter
  context = type("Context", (), {"draft_params": None})
  state = type("State", (), {"tokens": jnp.array([[*text, -1, -1]], jnp.int32),
                             "length": jnp.array([len(text)])})
  tree, _ = drafter.propose(None, context, state)
  tokens, valid = np.asarray(tree.tokens[0]), np.asarray(tree.valid[0])
  paths = []
  for node in np.flatnonzero(valid)[1:]:
    above = np.flatnonzero(np.asarray(tree.mask[0, node]))[1:]
    assert valid[above].all()
    paths.append(tokens[above].tolist())
  return paths


def test_equal_beginnings_share_nodes():
  text = [1, 5, 6, 1, 5, 7, 1, 8, 9, 1]
  assert propose(text, dj.methods.prompt_lookup(2, 3, 1)) == [
      [5], [8], [8, 9], [5, 7], [5, 6]]


@pytest.mark.long
def test_probable_nodes_are_kept():
  text = [1, 5, 6, 1, 5, 7, 1, 8, 9, 1]
  method = dj.methods.suffix(4, 2, 8, 4, 0.5, 4.0)
  assert propose(text, method) == [[5]]
  assert propose(text, dj.methods.suffix(2, 2, 8, 4, 0.1, 4.0)) == [[5], [8]]


def test_more_nodes_than_tokens_of_all_continuations():
  text = [1, 5, 6, 1, 5, 7, 1, 8, 9, 1]
  many, few = (propose(text, dj.methods.suffix(nodes, 2, 2, 1, 0.0, 99.0))
               for nodes in (99, 4))
  assert many == few and [5, 7] in many and [8, 9] in many


@pytest.mark.long
def test_nothing_is_known():
  assert propose([1, 2, 3], METHODS[0]) == propose([1, 2, 3], METHODS[1]) == []
