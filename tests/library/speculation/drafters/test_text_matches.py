"""Prompt lookup and suffix decoding: exact, and what they propose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation.drafters import text_matches
from decoding_jax.testing import exactness
from support import helpers

V, ROWS, LENGTH = 5, 50_000, 4
METHODS = [dj.methods.prompt_lookup(2, 2), dj.methods.suffix(5, 2, 6, 2, 0.0)]
OTHERS = np.random.default_rng(5).integers(0, V, 60).astype(np.int32)


def tables():
  return exactness.random_tables(V)


def generate(method, prompt, new=24, **arguments):
  lm, params = exactness.table_model(tables()[0])
  prompt = np.asarray(prompt, np.int32)
  return dj.generate(
      jax.random.key(0), prompt, np.full(len(prompt), prompt.shape[1],
                                         np.int32),
      method=method, target=lm, target_params=params, max_new_tokens=new,
      **arguments)


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_joint_distribution(method):
  target, _ = tables()
  counts, stats = exactness.frequencies(method, target, target, ROWS, LENGTH,
                                        draft_params=OTHERS)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  assert 1 < np.mean(stats.target_calls) < LENGTH
  # More than one child of a node was tested.
  assert np.asarray(stats.extra["tested_by_rank"])[:, 1].sum() > ROWS / 10


def test_control_of_the_joint_distribution():
  """The mass of children that were tested is not taken off."""
  def rule(uniforms, target, draft, tokens, valid):
    del draft
    hits = valid & (uniforms[:len(tokens)] < target[tokens])
    rest = target.at[jnp.where(valid, tokens, len(target))].set(0, mode="drop")
    return jnp.where(hits.any(), jnp.argmax(hits), -1), rest

  method = METHODS[1]
  sampled = method.sampled
  wrong = method._replace(name="wrong", sampled=sampled._replace(
      verifier=sampled.verifier._replace(rule=rule)))
  target, _ = tables()
  counts, _ = exactness.frequencies(wrong, target, target, ROWS, LENGTH,
                                    draft_params=OTHERS)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) < 1e-12


@pytest.mark.long
def test_other_texts_with_tokens_that_the_target_lacks():
  """A tokenizer may have more entries than a model."""
  target, _ = tables()
  others = np.where(np.arange(len(OTHERS)) % 3, OTHERS, V + OTHERS)
  counts, _ = exactness.frequencies(METHODS[-1], target, target, ROWS, LENGTH,
                                    draft_params=others.astype(np.int32))
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE


def test_other_texts_are_tokens():
  suffix = dj.methods.suffix(4, 2, 3)
  with pytest.raises(ValueError, match=r"draft_params have shapes \[\(2, 3\)"):
    generate(suffix, [[0, 1]], draft_params=np.zeros((2, 3), np.int32))


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_greedy_text_is_the_targets(method):
  prompt = [[0, 1, 2, 0, 1], [3, 3, 3, 3, 4]]
  plain, found = (generate(m, prompt, sampling=dj.Sampling(0.0))
                  for m in (dj.methods.autoregressive(), method))
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  assert found.stats.target_calls.max() < plain.stats.target_calls.min()


@pytest.mark.long
def test_rows_do_not_depend_on_each_other():
  method, prompts = METHODS[1], np.random.default_rng(0).integers(0, V, (6, 9))
  keys = jax.random.split(jax.random.key(1), 6)
  lm, params = exactness.table_model(tables()[0])
  run = lambda chosen, **kwargs: dj.generate(
      keys[chosen], prompts[chosen].astype(np.int32),
      np.full(len(chosen), 9, np.int32), method=method, target=lm,
      target_params=params, max_new_tokens=12, **kwargs)
  together = run(np.arange(6))
  np.testing.assert_array_equal(together.tokens[4],
                                run(np.array([4])).tokens[0])
  helpers.check_same(run(np.arange(6), rows=2), together)


def occurrences(text, count, max_ngram, depth, room=3):
  padded = jnp.array([*text, *(-1,) * room], jnp.int32)
  found = text_matches.occurrences(padded, len(text), count, max_ngram, depth)
  return [np.asarray(x) for x in found]


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
  """After 1 come 5 twice and 8 once, of three occurrences."""
  text = [1, 5, 6, 1, 5, 7, 1, 8, 9, 1]
  method = dj.methods.suffix(4, 2, 8, 4, 0.5, 4.0)
  assert propose(text, method) == [[5]]
  assert propose(text, dj.methods.suffix(2, 2, 8, 4, 0.1, 4.0)) == [[5], [8]]


def test_more_nodes_than_tokens_of_all_continuations():
  text = [1, 5, 6, 1, 5, 7, 1, 8, 9, 1]
  many, few = (propose(text, dj.methods.suffix(nodes, 2, 2, 1, 0.0, 99.0))
               for nodes in (99, 4))
  assert many == few and [5, 7] in many and [8, 9] in many


def test_nothing_is_known():
  assert propose([1, 2, 3], METHODS[0]) == propose([1, 2, 3], METHODS[1]) == []
