"""SSD: rounds in plain Python, exactness, a control, rows of a batch."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import sampling
from decoding_jax.speculation import prepared_chains, rounds, verifiers
from decoding_jax.testing import exactness
from support import helpers, on_roles, rounds_of_tables, tiny_models as tiny
from support.rounds_of_tables import END, NEW, V

DEPTH, GUESSES = 2, 2
ROWS, LENGTH = 50_000, 5
METHOD = dj.methods.ssd(DEPTH, GUESSES)


def plain_rounds(target, draft, first, fan):
  """Greedy SSD on tables `[V, V]`: the text, rounds, and prepared ones."""
  text, guesses, calls, prepared = [first], {}, 0, 0
  while len(text) < 1 + NEW and END not in text[1:]:
    calls, prepared = calls + 1, prepared + (text[-1] in guesses)
    # At temperature 0 a chain is the same, whenever it is drafted.
    chain = text[-1:]
    for _ in range(DEPTH):
      chain.append(int(draft[chain[-1]].argmax()))
    for i, token in enumerate(chain):
      text.append(int(target[token].argmax()))
      following = chain[i + 1:i + 2]
      guesses = [x for x in np.argsort(-draft[token]) if x not in following]
      guesses = guesses[:fan[i]]
      if text[-1:] != following:
        break
  ends = text.index(END, 1) + 1 if END in text[1:] else 1 + NEW
  return text[:ends], calls, prepared


@pytest.mark.parametrize("alike, fan", [
    (0, (2, 2, 2)), (0.8, (2, 2, 2)), (1, (2, 2, 2)), (0.8, (3, 1, 2))])
def test_greedy_rounds_are_those_of_plain_python(alike, fan):
  """Texts, target and draft calls, and how many chains were prepared."""
  target, other = exactness.random_tables(V)
  target[:, END] /= 20
  draft = alike * target + (1 - alike) * other
  same = len(set(fan)) == 1
  method = dj.methods.ssd(DEPTH, GUESSES if same else fan)
  out = rounds_of_tables.generate(method, target, draft,
                                  sampling=dj.Sampling(0.0))
  for row in range(V):
    text, calls, prepared = plain_rounds(target, draft, row, fan)
    assert out.tokens[row, :out.lengths[row]].tolist() == text
    assert out.stats.target_calls[row] == calls
    assert out.stats.extra["prepared_calls"][row] == prepared
    assert out.stats.draft_calls[row] == (
        calls * (DEPTH + 1) + (calls - prepared) * DEPTH)
    assert out.stats.nodes[row] == calls * DEPTH


def test_a_row_does_not_depend_on_the_others():
  """In a batch, in a queue, in another order: rows whose chain is prepared and
  rows that wait for one."""
  rounds_of_tables.check_rows(METHOD)


@pytest.mark.parametrize("depth, guesses", [(1, 1), (2, 2), (2, (3, 1, 2))])
def test_joint_distribution(depth, guesses):
  result = dj.testing.assert_exact(
      dj.methods.ssd(depth, guesses), *exactness.random_tables(V), rows=ROWS,
      length=LENGTH)
  assert 2 < result.target_calls < LENGTH


def test_control_stale_draft_fails():
  """The chain of the round before, said to be drawn after the newest token."""
  helpers.check_wrong(on_roles.stale(METHOD).sampled, V, ROWS, LENGTH)


def test_control_reused_uniforms_fail():
  """What a rejection has said of a uniform must not count twice."""
  def rule(uniforms, target, draft, tokens, valid):
    return verifiers.recursive(False).rule(uniforms, target, draft, tokens,
                                           valid)[0], target

  helpers.check_wrong(
      prepared_chains.decoder((2, 2, 2), sampling.draw, dj.Verifier(
          rule, frozenset(dj.Draws))), V, ROWS, LENGTH)


def test_caches_hold_nothing_that_was_rejected():
  """Of a drafter that errs the text; of the target itself the calls as well."""
  calls = rounds_of_tables.calls_of_itself(dj.methods.ssd(3, 2))
  assert (calls == -(-tiny.NEW // 4)).all()


def test_the_token_after_a_chain_is_drawn_of_the_target():
  """By hand: two tokens are accepted, and the third logits decide."""
  logits = np.log(np.eye(3, dtype=np.float32)[[1, 2, 0]] + 1e-30)
  warper = jax.tree.map(lambda x: x[0], sampling.make_warper(
      dj.Sampling(0.0), 1, 3))
  chain = np.array([1, 2], np.int32), logits[:2]
  tokens, accepted = rounds.verify(
      verifiers.match(), jax.random.key(0), logits, warper, chain, 2)
  assert accepted == 2 and tokens.tolist() == [1, 2, 0]
