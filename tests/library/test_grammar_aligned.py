"""ASAp against the conditional distribution of valid texts, enumerated."""

import jax
import numpy as np
import pytest

from decoding_jax import processors
import decoding_jax as dj
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.search_reference import fit

# Token 0 ends a text; after 1 it is hard to come to an end, after 2 it is not.
FOLLOWING = np.array([[-1, 1, 2, 5], [-1, -1, -1, 3], [4, 3, -1, 3],
                      [4, -1, -1, -1], [4, -1, -1, -1], [4, 1, 2, -1]])
V, NEW, ROWS, ROUNDS = 4, 5, 4000, 3


def valid_texts(table):
  """Each text that ends: its probabilities by the model, and under a mask."""
  def extend(text, state, chance, masked):
    if text and text[-1] == 0:
      yield text, (chance, masked)
    elif len(text) < NEW:
      row = table[text[-1] if text else 0]
      allowed = FOLLOWING[state] >= 0
      for token in np.flatnonzero(allowed):
        yield from extend((*text, int(token)), FOLLOWING[state, token],
                          chance * row[token],
                          masked * row[token] / row[allowed].sum())

  return dict(extend((), 0, 1.0, 1.0))


def draw(function, seed, rows, **kwargs):
  """The model's table, and what `function` draws by a method that drafts."""
  rng = np.random.default_rng(4)
  target, draft = (exactness.random_table(rng, V) for _ in range(2))
  return target, function(
      jax.random.key(seed), [0], grammar=processors.automaton(),
      grammar_params=processors.table(FOLLOWING), eos_id=0, rows=rows,
      method=dj.methods.speculative(2), max_new_tokens=NEW + 1,
      **tiny.arguments(tiny.tables(target, draft)), **kwargs)


@pytest.fixture(name="drawn", scope="module")
def _drawn():
  return draw(dj.asap, 0, ROWS, rounds=ROUNDS)


def p_value(actual, step, expected):
  """Of the texts of a round, against probabilities of texts."""
  return fit(actual._replace(tokens=actual.tokens[step],
                             lengths=actual.lengths[step]), expected)


def test_the_last_round_is_the_conditional_distribution(drawn):
  """All beginnings were seen, so that bounds are probabilities."""
  table, actual = drawn
  texts = valid_texts(table)
  total = sum(x for x, _ in texts.values())
  expected = {text: x / total for text, (x, _) in texts.items()}
  assert len(texts) == 9
  np.testing.assert_allclose(actual.validity[-1], total, rtol=1e-5)
  assert p_value(actual, ROUNDS - 1, expected) > exactness.MIN_P_VALUE
  # Control: the first round is the masked distribution, another one.
  assert p_value(actual, 0, expected) < helpers.MAX_P_VALUE_OF_CONTROL


def test_the_first_round_is_the_masked_distribution(drawn):
  table, actual = drawn
  expected = {text: x for text, (_, x) in valid_texts(table).items()}
  np.testing.assert_allclose(sum(expected.values()), 1)
  assert p_value(actual, 0, expected) > exactness.MIN_P_VALUE
  assert (np.diff(actual.validity) <= 1e-9).all()


@pytest.mark.parametrize("draw", [dj.asap, dj.aprad])
@pytest.mark.parametrize("grammar, rounds, message", [
    (processors.automaton(), 0, "rounds=0: "),
    (processors.repetition_penalty(1.5, V), 1, "grammar reads prompts")],
    ids=["rounds", "prompt"])
def test_errors_tell_what_is_needed(grammar, rounds, message, draw):
  with pytest.raises(ValueError, match=message):
    draw(None, [0], grammar=grammar, grammar_params=(), target=None,
         target_params=None, method=None, eos_id=0, rounds=rounds, rows=1,
         max_new_tokens=1)
