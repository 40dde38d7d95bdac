"""Lookahead decoding: exact, and pool, window and drafts as by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.testing import drafter_conformance, exactness
from support import helpers

V, ROWS, LENGTH = 5, 50_000, 4
METHOD = dj.methods.lookahead(3, 3, 2, V)
# All that may follow 1, 2 and so on has followed it before.
PROMPT = [1, 2, 0, 1, 3, 1, 2, 4, 2, 1]
GREEDY = dj.Sampling(0.0)


def generate(method, prompts, table, new=LENGTH, key=0, **arguments):
  lm, params = exactness.table_model(table)
  prompts = np.asarray(prompts, np.int32)
  return dj.generate(
      jax.random.key(key) if isinstance(key, int) else key, prompts,
      np.full(len(prompts), prompts.shape[1], np.int32), method=method,
      target=lm, target_params=params, max_new_tokens=new, **arguments)


def fit(method):
  """The p-value of texts after `PROMPT`, and their statistics."""
  table = exactness.random_tables(V)[0]
  out = generate(method, [PROMPT] * ROWS, table)
  counts = np.zeros((V,) * LENGTH)
  np.add.at(counts, tuple(np.asarray(out.tokens[:, -LENGTH:]).T), 1)
  probs = exactness.joint_distribution(table, PROMPT[-1], LENGTH)
  return exactness.p_value(counts, probs), out.stats


def test_joint_distribution():
  p_value, stats = fit(METHOD)
  assert p_value > exactness.MIN_P_VALUE
  assert 1 < np.mean(stats.target_calls) < LENGTH
  assert np.asarray(stats.extra["tested_by_rank"])[:, 1].sum() > ROWS / 10


def test_control_n_grams_taken_for_samples():
  def propose(keys, context, state):
    tree, pending = METHOD.sampled.drafter.propose(keys, context, state)
    return tree.replace(log_probs=jnp.full(
        (*tree.tokens.shape, V), -np.log(V))), pending

  pair = dj.Pair(METHOD.sampled.drafter._replace(propose=propose),
                 verifiers.recursive(replacement=False))
  assert fit(dj.Method("wrong", pair, None))[0] < helpers.MAX_P_VALUE_OF_CONTROL


class Oracle:
  """The algorithm in plain Python, of a target that follows a map."""

  def __init__(self, follow, prompt, ngram, width, guesses, buckets, by_one):
    self.follow, self.text = follow, list(prompt)
    self.ngram, self.width, self.guesses = ngram, width, guesses
    self.buckets, self.pool, self.steps = buckets, {}, 0
    self.by_one = by_one
    self.window = [[prompt[(row * width + i) % len(prompt)]
                    for i in range(width)] for row in range(ngram - 1)]
    for i in range(len(prompt) - ngram + 1):
      self.put(tuple(prompt[i:i + ngram]))

  def put(self, gram):
    bucket = self.pool.setdefault(gram[0] % self.buckets, [])
    if gram in bucket:
      bucket.remove(gram)
    bucket.insert(0, gram)
    del bucket[self.guesses:]

  def drafts(self):
    """The window with the root, and the distinct beginnings of the drafts."""
    root = self.text[-1]
    self.window[0][0] = root
    grams = [gram[1:] for gram in self.pool.get(root % self.buckets, [])
             if gram[0] == root]
    return sum(self.window, []), {gram[:i + 1] for gram in grams
                                  for i in range(self.ngram - 1)}

  def step(self):
    _, paths = self.drafts()
    accepted = ()
    while (*accepted, self.follow[(*self.text, *accepted)[-1]]) in paths:
      accepted += self.follow[(*self.text, *accepted)[-1]],
    rows = [*self.window, [self.follow[x] for x in self.window[-1]]]
    if self.steps >= self.ngram - 2:
      for column in zip(*rows):
        self.put(column)
    moves = 0 if self.by_one else len(accepted)
    self.window = [[row[(i + moves) % self.width]
                    for i in range(self.width)] for row in rows[1:]]
    for token in [*accepted, self.follow[(*self.text, *accepted)[-1]]]:
      self.text.append(token)
      if len(self.text) >= self.ngram:
        self.put(tuple(self.text[-self.ngram:]))
    self.steps += 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("ngram, width, guesses, buckets, by_one", [
    (4, 4, 3, 9, True), (3, 2, 2, 2, True), (2, 1, 2, 9, True),
    (4, 4, 3, 9, False), (3, 2, 2, 2, False)])
def test_proposals_of_greedy_texts(ngram, width, guesses, buckets, by_one):
  follow = np.random.default_rng(2).permutation(9)
  prompt, found = [3, 1, 4, 1, 5, 8, 2, 6, 5, 3], []
  drafter = drafters.lookahead(ngram, width, guesses, buckets, True, by_one)

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(lambda *x: found.append(x), tree, pending)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  out = generate(dj.Method("spied", pair, pair), [prompt],
                 0.9 * np.eye(9)[follow] + 0.1 / 9, 24, sampling=GREEDY)
  jax.effects_barrier()
  oracle = Oracle(follow, prompt, ngram, width, guesses, buckets, by_one)
  for tree, window in found:
    tree = jax.tree.map(lambda x: np.asarray(x)[0], tree)
    paths = [tuple(tree.tokens[np.flatnonzero(tree.mask[node])[1:]].tolist())
             for node in np.flatnonzero(tree.valid)[1:]]
    passengers, expected = oracle.drafts()
    assert np.ravel(window).tolist() == passengers
    assert tree.tokens[guesses * (ngram - 1) + 1:].tolist() == passengers[1:]
    assert len(set(paths)) == len(paths) and set(paths) == expected
    oracle.step()
  assert out.tokens[0].tolist() == oracle.text[:len(out.tokens[0])]
  assert len(found) == int(out.steps)
  # N-grams of the cycle are found.
  assert len(found) < 24


def test_a_guess_sees_its_column_and_the_first_row_before_it():
  drafter, found = drafters.lookahead(4, 3, 1, V, False, True), []

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(found.append, tree.mask)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  generate(dj.Method("spied", pair, pair), [[0]], np.eye(V), 1, sampling=GREEDY)
  jax.effects_barrier()
  # One branch of three nodes, then rows of 2, 3 and 3 nodes.
  mask = [set(np.flatnonzero(row)) for row in np.asarray(found[0][0])]
  assert mask[4:] == [{0, 4}, {0, 4, 5}, {0, 6}, {0, 4, 7}, {0, 4, 5, 8},
                      {0, 6, 9}, {0, 4, 7, 10}, {0, 4, 5, 8, 11}]


def test_rows_learn_by_themselves():
  """A row's text does not depend on the batch, nor on the queue."""
  keys = jax.random.split(jax.random.key(1), 6)
  prompts = np.random.default_rng(0).integers(0, V, (6, 9))
  run = lambda chosen, **kwargs: generate(
      METHOD, prompts[chosen], exactness.random_tables(V)[0], 12, keys[chosen],
      **kwargs)
  together = run(np.arange(6))
  np.testing.assert_array_equal(together.tokens[4],
                                run(np.array([4])).tokens[0])
  helpers.check_same(run(np.arange(6), rows=2), together)


def test_contract_of_drafters():
  drafter_conformance.check_drafter(METHOD.sampled.drafter, rows=64,
                                    steps=2)


@pytest.mark.parametrize("sizes, words", [
    ((1, 3, 2), "ngram=1: a number from 2"), ((3, 0, 2), "window=0"),
    ((3, 3, 2, 0), "buckets=0")])
def test_wrong_sizes(sizes, words):
  with pytest.raises(ValueError, match=words):
    dj.methods.lookahead(*sizes)
