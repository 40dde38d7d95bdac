"""ADED: the most probable nodes of the right table, learned as by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation.drafters import trigram_table
from decoding_jax.testing import exactness
from support import helpers

V, BUCKETS = 5, 37
TARGET, _ = exactness.random_tables(V)


class Oracle:
  """The table in plain Python; it forgets as the drafter does."""

  def __init__(self, size):
    self.table = [[[-1, 0.0] for _ in range(size)] for _ in range(BUCKETS)]

  def bucket(self, first, second):
    mixed = (first * 0x9E3779B1 + second) % 2**32
    return self.table[(mixed ^ mixed >> 15) % BUCKETS]

  def learn(self, text, gain=0.2):
    for first, second, third in zip(text, text[1:], text[2:]):
      bucket = self.bucket(first, second)
      entry = next((x for x in bucket if x[0] == third), None)
      if entry is None:
        entry = min(bucket, key=lambda x: x[1])
        entry[:] = [third, 0.0]
      entry[1] = min(entry[1] + gain, 3.0)

  def chances(self, pair, depth):
    """Probabilities of all texts of up to `depth` tokens after a pair."""
    results = {}
    for token, score in self.bucket(*pair) if depth else ():
      if score:
        share = score / sum(x[1] for x in self.bucket(*pair))
        results[token,] = share
        results.update({(token, *path): share * chance for path, chance in
                        self.chances((pair[1], token), depth - 1).items()})
    return results


def test_the_most_probable_nodes_are_drafted():
  """After each step of a greedy text, by a table that knows it so far."""
  _, result = helpers.spied(
      dj.methods.aded(6, 3, 3, BUCKETS).greedy.drafter, TARGET,
      np.random.default_rng(1).integers(0, V, 40), 24)
  for tree, _, tokens, length in result:
    text = tokens[0, :length[0]].tolist()
    oracle = Oracle(3)
    oracle.learn(text)
    chances = oracle.chances(tuple(text[-2:]), 3)
    paths = helpers.paths(tree)
    assert len(set(paths)) == len(paths) == min(6, len(chances))
    np.testing.assert_allclose(
        sorted((chances[path] for path in paths), reverse=True),
        sorted(chances.values(), reverse=True)[:len(paths)], rtol=1e-5)
  assert len(result) < 24


def test_a_window_gains_by_calls():
  """Each call adds to the tri-grams of the newest tokens, of running rows."""
  method = dj.methods.aded(6, 3, 3, BUCKETS, window=5)
  text, (lm, params) = [0, 1, 2, 0], exactness.table_model(TARGET)
  run = dj.begin(jax.random.key(0), np.array([text]), np.array([4]),
                 method=method, target=lm, target_params=params,
                 max_new_tokens=9)
  oracle = Oracle(3)
  oracle.learn(text)
  for _ in range(9):
    more, _ = dj.step(run)
    text = np.asarray(more.tokens)[0, :int(more.lengths[0])].tolist()
    if not run.done.all():
      oracle.learn(text[-5:], 0.04)
    run = more
  tokens, scores = (np.asarray(x)[0] for x in run.state.carry)
  assert run.done.all()
  assert tokens.tolist() == [[x[0] for x in entry] for entry in oracle.table]
  np.testing.assert_allclose(scores, [[x[1] for x in entry]
                                      for entry in oracle.table], rtol=1e-5)


def test_scores_rise_to_a_most():
  oracle, text = Oracle(2), [*[1, 2, 3] * 20, 1, 2, 4, 1, 2, 0]
  oracle.learn(text)
  table = jnp.full((BUCKETS, 2), -1), jnp.zeros((BUCKETS, 2), jnp.float32)
  tokens, scores = trigram_table.learn(table, jnp.array(text), len(text) - 2)
  for (first, second), _ in itertools.groupby(itertools.pairwise(text)):
    at = int(trigram_table.bucket(np.array(first), np.array(second), BUCKETS))
    expected = oracle.bucket(first, second)
    assert tokens[at].tolist() == [x[0] for x in expected]
    np.testing.assert_allclose(scores[at], [x[1] for x in expected], rtol=1e-5)
  assert scores.max() == 3
