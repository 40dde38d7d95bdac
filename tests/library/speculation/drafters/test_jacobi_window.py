"""Lookahead decoding: pool, window and drafts as by hand."""

import numpy as np
import pytest

from decoding_jax.speculation import drafters
from support import helpers


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
  prompt = [3, 1, 4, 1, 5, 8, 2, 6, 5, 3]
  out, actual = helpers.spied(
      drafters.lookahead(ngram, width, guesses, buckets, True, by_one),
      0.9 * np.eye(9)[follow] + 0.1 / 9, prompt, 24)
  oracle = Oracle(follow, prompt, ngram, width, guesses, buckets, by_one)
  for tree, window, *_ in actual:
    paths = helpers.paths(tree)
    passengers, expected = oracle.drafts()
    assert np.ravel(window).tolist() == passengers
    assert tree.tokens[0, guesses * (ngram - 1) + 1:].tolist() == passengers[1:]
    assert len(set(paths)) == len(paths) and set(paths) == expected
    oracle.step()
  assert out.tokens[0].tolist() == oracle.text[:len(out.tokens[0])]
  assert len(actual) == int(out.steps)
  # N-grams of the cycle are found.
  assert len(actual) < 24


def test_a_guess_sees_its_column_and_the_first_row_before_it():
  tree = helpers.first_tree(drafters.lookahead(4, 3, 1, 5, False, True),
                            np.eye(5))
  # One branch of three nodes, then rows of 2, 3 and 3 nodes.
  mask = [set(np.flatnonzero(row)) for row in tree.mask[0]]
  assert mask[4:] == [{0, 4}, {0, 4, 5}, {0, 6}, {0, 4, 7}, {0, 4, 5, 8},
                      {0, 6, 9}, {0, 4, 7, 10}, {0, 4, 5, 8, 11}]
