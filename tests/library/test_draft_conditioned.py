"""Drafts without a grammar, and texts under it after them."""

import jax
import numpy as np
import pytest

from decoding_jax import processors
import decoding_jax as dj
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny

# Token 0 ends a text.
FOLLOWING = np.array([[-1, 1, 2, 3], [-1, -1, -1, 3], [3, 3, -1, 3],
                      [3, -1, -1, -1]])
V, ROWS, BRIDGE = 4, 4000, (3, 1)


def draw(num_drafts, rows, bridge=BRIDGE):
  rng = np.random.default_rng(4)
  target, draft = (exactness.random_table(rng, V) for _ in range(2))
  return target, dj.dccd(
      jax.random.key(0), np.full((rows, 1), 2), np.ones(rows),
      grammar=processors.automaton(), bridge=bridge, eos_id=0,
      grammar_params=processors.table(FOLLOWING), draft_tokens=4,
      method=dj.methods.speculative(2), max_new_tokens=5, num_drafts=num_drafts,
      **tiny.arguments(tiny.tables(target, draft)))


def masked(table, before, state=0, chance=1.0, text=(), tax=0.0):
  """Texts after a token: their probabilities under a mask, and their taxes."""
  if text and text[-1] == 0:
    return {text: (chance, tax)}
  allowed = FOLLOWING[state] >= 0
  mass, result = table[before, allowed].sum(), {}
  for token in map(int, np.flatnonzero(allowed)):
    result |= masked(table, token, FOLLOWING[state, token],
                     chance * table[before, token] / mass, (*text, token),
                     tax - np.log(mass))
  return result


def test_texts_after_a_draft_have_the_masked_distribution():
  table, actual = draw(1, ROWS)
  expected = masked(table, BRIDGE[-1])
  counts = dict.fromkeys(expected, 0)
  drafts = set()
  for row, start, end, tax in zip(actual.tokens, actual.starts, actual.lengths,
                                  actual.taxes[:, 0]):
    drafts.add(tuple(row[1:start - 2].tolist()))
    assert tuple(row[start - 2:start]) == BRIDGE
    text = tuple(row[start:end].tolist())
    counts[text] += 1
    np.testing.assert_allclose(tax, expected[text][1], rtol=1e-4)
  # Drafts know no grammar: 2 may follow 2, and none has an end.
  assert any((2, 2) == x[:2] for x in drafts) and not any(0 in x
                                                          for x in drafts)
  counts = np.array(list(counts.values()))
  probs = np.array([x for x, _ in expected.values()])
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Control: without the bridge's last token it is another distribution.
  other = masked(table, 2)
  assert exactness.p_value(counts, np.array([
      other[text][0] for text in expected])) < helpers.MAX_P_VALUE_OF_CONTROL


def test_the_draft_of_the_least_tax_is_kept():
  """Without a bridge what follows depends on the draft's last token."""
  table, got = draw(3, 200, bridge=())
  assert got.taxes.shape == (200, 3)
  assert got.taxes.std(axis=1).max() > 0.1
  for row, start, end, taxes in zip(got.tokens, got.starts, got.lengths,
                                    got.taxes):
    text = tuple(row[start:end].tolist())
    np.testing.assert_allclose(masked(table, row[start - 1])[text][1],
                               taxes.min(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("arguments, message", [
    (dict(num_drafts=0), "num_drafts=0: "),
    (dict(draft_tokens=0), "draft_tokens=0: "),
    (dict(grammar=processors.repetition_penalty(1.5, V)),
     "grammar reads prompts")], ids=["drafts", "tokens", "prompt"])
def test_errors_tell_what_is_needed(arguments, message):
  with pytest.raises(ValueError, match=message):
    dj.dccd(None, [[0]], [1], **{
        **dict(grammar=processors.automaton(), grammar_params=(), bridge=(),
               target=None, target_params=None, method=None, eos_id=0,
               draft_tokens=1, max_new_tokens=1), **arguments})
