"""AprAD between the masked and the aligned distribution, enumerated."""

import numpy as np

from decoding_jax import approximately_aligned, grammar_aligned
import decoding_jax as dj
from library.test_grammar_aligned import draw, FOLLOWING, V, valid_texts

ROWS = 4000


def distances(result, table):
  """Total variation from the aligned and from the masked distribution."""
  texts = valid_texts(table)
  aligned, masked = np.array(list(texts.values())).T
  counts = dict.fromkeys(texts, 0)
  for row, length in zip(result.tokens, result.lengths):
    counts[tuple(row[1:length].tolist())] += 1
  shares = np.array(list(counts.values())) / len(result.lengths)
  return [np.abs(shares - x / x.sum()).sum() / 2
          for x in (aligned, masked)] + [np.abs(
              aligned / aligned.sum() - masked).sum() / 2]


def test_texts_are_valid_and_less_biased_than_under_a_mask():
  """By at least half of what the mask is off; 4000 texts tell to 0.02."""
  table, result = draw(dj.aprad, 0, ROWS)
  assert result.valid.all()
  own, from_mask, of_mask = distances(result, table)
  assert of_mask > 0.1
  assert own < of_mask / 2
  # Control: it is not the masked distribution either.
  assert from_mask > of_mask / 4
  assert (result.drawn >= result.lengths - 1).all()


def test_bounds_fall_to_the_probability_of_valid_texts():
  table, _ = draw(dj.aprad, 1, 2)
  total = sum(x for x, _ in valid_texts(table).values())
  trie, masked = [grammar_aligned.Node()], set()
  rng = np.random.default_rng(0)
  for _ in range(2000):
    text, state = [], 0
    while not text or text[-1]:
      row = table[text[-1] if text else 0]
      token = int(rng.choice(V, p=row))
      if FOLLOWING[state, token] < 0:
        allowed = [table[i, FOLLOWING[s] >= 0].sum() for i, s in zip(
            (0, *text), _states(text))]
        approximately_aligned._learn(
            trie, masked, tuple(text), approximately_aligned._Scores(
                np.log([table[i, j] for i, j in zip((0, *text), text)]),
                np.log(allowed), None, None))
        break
      state = FOLLOWING[state, token]
      text.append(token)
  np.testing.assert_allclose(trie[0].bound, total, rtol=1e-6)


def _states(text):
  states = [0]
  for token in text:
    states.append(FOLLOWING[states[-1], token])
  return states


def test_what_is_kept():
  """Nothing is known but the error: .8 and .5 * .2 are lost of 1."""
  scores = approximately_aligned._Scores(
      np.log([0.5, 0.25]), np.log([1.0, 0.2]), None, None)
  trie = [grammar_aligned.Node()]
  # c' / c: 1 - .5 * .8 = .6 of nothing, .2 after the first token.
  for uniform, kept in ((0.0, 1), (0.33, 1), (0.34, 0), (0.99, 0)):
    assert approximately_aligned._kept(trie, set(), (3,), scores,
                                       uniform) == kept
