"""PEARL: rounds in plain Python, exactness, controls, rows of a batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import metrics, sampling
import decoding_jax as dj
from decoding_jax.speculation import parallel_chain, verifiers
from decoding_jax.testing import exactness
from support import helpers, rounds_of_tables, tiny_models as tiny
from support.rounds_of_tables import END, NEW, V

DEPTH = 3
ROWS, LENGTH = 50_000, 5
METHOD = dj.methods.pearl(DEPTH)
RIGHT = verifiers.recursive(replacement=False).rule


def plain_rounds(target, draft, first):
  """Greedy PEARL on tables `[V, V]`: the text, rounds, and post-verifies."""
  text, pending, calls, post = [first], [], 0, 0
  while len(text) < 1 + NEW and END not in text[1:]:
    calls, post = calls + 1, post + bool(pending)
    chain = text[-1:] + pending
    for _ in range(DEPTH):
      chain.append(int(draft[chain[-1]].argmax()))
    judged = len(pending) + 1
    for i in range(judged):
      text.append(int(target[chain[i]].argmax()))
      if text[-1] != chain[i + 1]:
        pending = []
        break
    else:
      pending = chain[judged + 1:]
  ends = text.index(END, 1) + 1 if END in text[1:] else 1 + NEW
  return text[:ends], calls, post


@pytest.mark.parametrize("alike", [0, 0.8, 1])
def test_greedy_rounds_are_those_of_plain_python(alike):
  """Texts, target calls and modes, with drafts that fail at times."""
  target, other = exactness.random_tables(V)
  target[:, END] /= 20
  draft = alike * target + (1 - alike) * other
  out = rounds_of_tables.generate(METHOD, target, draft,
                                  sampling=dj.Sampling(0.0))
  for row in range(V):
    text, calls, post = plain_rounds(target, draft, row)
    assert out.tokens[row, :out.lengths[row]].tolist() == text
    assert out.stats.target_calls[row] == calls
    assert out.stats.draft_calls[row] == calls * DEPTH
    assert out.stats.nodes[row] == post * (DEPTH - 1)
    assert out.stats.extra["post_verify_calls"][row] == post


def test_a_row_does_not_depend_on_the_others():
  rounds_of_tables.check_rows(METHOD)


@pytest.mark.parametrize("depth", [2, DEPTH])
def test_joint_distribution(depth):
  """Five tokens: both modes, and ways from each to the other, are in them."""
  target, draft = exactness.random_tables(V)
  result = dj.testing.assert_exact(dj.methods.pearl(depth), target, draft,
                                   rows=ROWS, length=LENGTH)
  assert 2 < result.target_calls < LENGTH


def kept_target(uniforms, target, draft, tokens, valid):
  """What is rejected is not taken off the target's distribution."""
  return RIGHT(uniforms, target, draft, tokens, valid)[0], target


def without_draft(uniforms, target, draft, tokens, valid):
  """A draft is accepted by the target's probability alone."""
  hit = valid[0] & (uniforms[0] < target[tokens[0]])
  return jnp.where(hit, 0, dj.types.NONE).astype(jnp.int32), RIGHT(
      uniforms, target, draft, tokens, valid)[1]


@pytest.mark.parametrize("rule", [kept_target, without_draft])
def test_control_wrong_rules_fail(rule):
  helpers.check_wrong(
      parallel_chain.decoder(2, sampling.draw, dj.Verifier(
          rule, frozenset(dj.Draws))), V, ROWS, LENGTH)


def test_caches_hold_what_is_pending_and_nothing_that_was_rejected():
  """Of a drafter that errs the text; of the target itself the calls as well."""
  calls = rounds_of_tables.calls_of_itself(METHOD)
  assert (calls == 1 + -(-(tiny.NEW - 1) // DEPTH)).all()


def test_a_drafter_that_is_the_target_is_accepted_always():
  target, _ = exactness.random_tables(V)
  result = dj.testing.check(METHOD, target, target, rows=100, length=1 + DEPTH)
  assert result.target_calls == 2


def test_latency_is_simulated():
  """By hand: 4 rounds of 3 drafts; of a quarter of a call they are hidden."""
  assert metrics.parallel_latency(4, 12, 0.25) == 4
  assert metrics.parallel_latency(4, 12, 0.5) == 6
  np.testing.assert_array_equal(
      metrics.parallel_latency(np.array([4, 1]), np.array([12, 3]), 0.5),
      [6, 1.5])
