"""Token Recycling: exact from any table, and the table is the target's own."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.speculation.drafters import successor_table
from decoding_jax.testing import exactness
from support import helpers

V, ROWS, LENGTH = 5, 50_000, 4
WIDTHS, BRANCHING = (3, 3), 3
METHOD = dj.methods.token_recycling(WIDTHS, BRANCHING)


def start_table():
  """Random successors; some of the entries are not known."""
  rng = np.random.default_rng(3)
  table = np.stack([rng.permutation(V)[:BRANCHING] for _ in range(V)])
  table[1, 1:] = -1
  return table.astype(np.int32)


def target_table():
  return exactness.random_tables(V)[0]


def generate(method=METHOD, rows=4, new=24, key=0, **arguments):
  lm, params = exactness.table_model(target_table())
  return dj.generate(
      jax.random.key(key), np.zeros((rows, 1), np.int32),
      np.ones(rows, np.int32), method=method, target=lm, target_params=params,
      max_new_tokens=new, **arguments)


def fit(method, **kwargs):
  counts, stats = exactness.frequencies(
      method, target_table(), target_table(), ROWS, LENGTH, **kwargs)
  probs = exactness.joint_distribution(target_table(), 0, LENGTH)
  return exactness.p_value(counts, probs), stats


def test_joint_distribution():
  p_value, stats = fit(METHOD, draft_params=start_table())
  assert p_value > exactness.MIN_P_VALUE
  # Two calls and more, and some of their drafts are accepted.
  assert 1 < np.mean(stats.target_calls) < LENGTH


def test_a_table_with_tokens_that_the_target_lacks():
  """A tokenizer may have more entries than a model."""
  table = start_table()
  table[:, 0] += V
  assert fit(METHOD, draft_params=table)[0] > exactness.MIN_P_VALUE


def test_control_children_that_are_no_samples_need_their_verifier():
  wrong = dj.Pair(drafters.token_recycling(WIDTHS, BRANCHING)._replace(
      propose=_with_flat_log_probs), verifiers.recursive(replacement=False))
  p_value, _ = fit(dj.Method("wrong", wrong, None),
                   draft_params=start_table())
  assert p_value < helpers.MAX_P_VALUE_OF_CONTROL


def _with_flat_log_probs(keys, context, state):
  tree, pending = METHOD.sampled.drafter.propose(keys, context, state)
  shape = (*tree.tokens.shape, V)
  return tree.replace(log_probs=np.full(shape, -np.log(V), np.float32)), pending


def test_wrong_pairs_are_refused():
  with pytest.raises(ValueError, match="Drafter.draws=ARBITRARY"):
    dj.pair(drafters.token_recycling(WIDTHS, BRANCHING),
            verifiers.recursive(replacement=False))


def test_greedy_text_is_the_targets():
  plain = generate(dj.methods.autoregressive(), sampling=dj.Sampling(0.0))
  found = generate(sampling=dj.Sampling(0.0))
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  # On a table the greedy text comes to a cycle, which the drafter knows then.
  assert found.stats.target_calls.max() < plain.stats.target_calls.min()
  assert not found.stats.draft_calls.any()


def test_rows_learn_by_themselves():
  """A row's text does not depend on the batch, nor on the queue."""
  keys = jax.random.split(jax.random.key(1), 6)
  lm, params = exactness.table_model(target_table())
  run = lambda chosen, **kwargs: dj.generate(
      keys[chosen], np.zeros((len(chosen), 1), np.int32),
      np.ones(len(chosen), np.int32), method=METHOD, target=lm,
      target_params=params, max_new_tokens=12, **kwargs)
  together, alone = run(np.arange(6)), run(np.array([4]))
  np.testing.assert_array_equal(together.tokens[4], alone.tokens[0])
  helpers.check_same(run(np.arange(6), rows=2), together)


def test_the_table_holds_what_the_target_said():
  """Of each token that was scored, the target's most probable successors."""
  states = []
  observe = METHOD.sampled.drafter.observe

  def spy(context, before, after, seen):
    state = observe(context, before, after, seen)
    jax.debug.callback(states.append, state.carry)
    return state

  drafter = METHOD.sampled.drafter._replace(observe=spy)
  method = dj.Method("spied", dj.pair(drafter, verifiers.sample_and_match()),
                     None)
  out = generate(method, rows=1, new=30)
  jax.block_until_ready(out)
  expected = np.argsort(-target_table(), axis=1)[:, :BRANCHING]
  table = states[-1][0]
  known = (table >= 0).all(axis=1)
  # The last token of the text was never scored.
  assert known[np.unique(out.tokens[0, :-1])].all()
  np.testing.assert_array_equal(table[known], expected[known])


def test_a_start_table_of_another_shape():
  with pytest.raises(ValueError, match=r"draft_params has shape \(2, 2\)"):
    generate(draft_params=np.zeros((2, 2), np.int32))


def test_template_takes_low_ranks_first():
  assert successor_table.template((2, 3), 2).children == ((2,), (2, 1))
  paper = successor_table.template((8, 21, 25, 15, 8, 3), 8)
  assert paper.widths == (8, 21, 25, 15, 8, 3)
  assert all(list(level) == sorted(level, reverse=True)
             for level in paper.children[:2])
