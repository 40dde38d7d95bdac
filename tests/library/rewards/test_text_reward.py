"""Rewards: what `generate` reports, and what advances one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny

ROWS, V, EOS = 8, 6, 2
PROMPTS = np.random.default_rng(1).integers(0, V, (ROWS, 4)).astype(np.int32)
LENGTHS = np.arange(ROWS, dtype=np.int32) % 4 + 1


def tables(seed):
  """A value of each state, in each row."""
  return np.random.default_rng(seed).normal(
      size=(ROWS, tiny.STATES)).astype(np.float32)


def run(seed=0, **kwargs):
  table = exactness.random_table(np.random.default_rng(0), V)
  return tiny.generate(
      dj.methods.speculative(2), tiny.tables(table), prompts=PROMPTS,
      lengths=LENGTHS, new=7, eos_id=EOS, reward=tiny.table_reward(),
      reward_params=2.0, constraints=tables(seed), **kwargs)


def test_any_method_reports_the_reward_of_the_text():
  out = run()
  ends = np.asarray(out.lengths)
  assert len(set(ends - LENGTHS)) > 2
  expected = [2 * tiny.table_value(table, tokens[:end]) for table, tokens, end
              in zip(tables(0), np.asarray(out.tokens), ends)]
  np.testing.assert_allclose(out.stats.extra["reward"], expected, rtol=1e-6)


def test_another_constraint_is_not_compiled_anew():
  size = tiny.generate_lib._generate.num_programs
  first = run(seed=1)
  before = size()
  second = run(seed=2)
  assert size() == before
  np.testing.assert_array_equal(first.tokens, second.tokens)
  assert not np.array_equal(first.stats.extra["reward"],
                            second.stats.extra["reward"])


def test_control_tokens_that_are_not_valid_change_nothing():
  reward, tokens = tiny.table_reward(), jnp.array([3, 1, 4])
  state = reward.init(1.0, None, jnp.array([1, 5]), 1)
  none = reward.advance(1.0, None, state, tokens, jnp.zeros(3, bool))
  some = reward.advance(1.0, None, state, tokens, jnp.array([1, 0, 1], bool))
  both = reward.advance(1.0, None, state, tokens[::2], jnp.ones(2, bool))
  assert none == state and some == both != state


@pytest.mark.parametrize("constraints", [None, jnp.zeros((2, 0))])
def test_a_reward_without_constraints(constraints):
  length = dj.Reward(
      init=lambda params, constraint, prompt, length: length,
      advance=lambda params, constraint, state, _, valid: state + valid.sum(),
      value=lambda params, constraint, state: state / params)
  out = tiny.generate(
      dj.methods.autoregressive(), tiny.tables(np.roll(np.eye(V), 1, axis=1)),
      prompts=PROMPTS[:2], lengths=LENGTHS[:2], new=3, reward=length,
      reward_params=4, constraints=constraints)
  assert jax.tree.map(float, list(out.stats.extra["reward"])) == [1, 1.25]
