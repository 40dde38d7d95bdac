"""Token Recycling: the table is the target's own, its template of low ranks."""

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.speculation.drafters import successor_table
from decoding_jax.testing import exactness

METHOD = dj.methods.token_recycling((3, 3), 3)


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
  table, _ = exactness.random_tables(5)
  lm, params = exactness.table_model(table)
  out = dj.generate(
      jax.random.key(0), np.zeros((1, 1), np.int32), np.ones(1, np.int32),
      method=method, target=lm, target_params=params, max_new_tokens=30)
  jax.block_until_ready(out)
  expected = np.argsort(-table, axis=1)[:, :3]
  table = states[-1][0]
  known = (table >= 0).all(axis=1)
  # The last token of the text was never scored.
  assert known[np.unique(out.tokens[0, :-1])].all()
  np.testing.assert_array_equal(table[known], expected[known])


def test_template_takes_low_ranks_first():
  assert successor_table.template((2, 3), 2).children == ((2,), (2, 1))
  paper = successor_table.template((8, 21, 25, 15, 8, 3), 8)
  assert paper.widths == (8, 21, 25, 15, 8, 3)
  assert all(list(level) == sorted(level, reverse=True)
             for level in paper.children[:2])
