"""The joint law of the first tokens through `generate`, by chi-square.

Trees of depth 1 and 2 emit at most 3 tokens a call: the 4 tokens that are
counted span at least two calls, each with branching. One-token marginals and
one-call tests miss errors that carry over from call to call.
"""

import jax
import numpy as np
import pytest

import decoding_jax as dj
import helpers
from decoding_jax import draft as draft_lib, verify

ROWS = 100_000
# Fewer already tell a wrong law.
CONTROL_ROWS = 50_000
LENGTH = 4

METHODS = [
    dj.methods.autoregressive(),
    dj.methods.speculative(2),
    dj.methods.rsd_c((2, 1)),
    dj.methods.rsd_c((2, 2)),
    dj.methods.rsd_s(2, 2),
    dj.methods.specinfer(2, 2),
    dj.methods.spectr(2, 2),
]
# Vocabulary and number of zeros in each target and each draft law; those of one
# vocabulary share their programs.
PAIRS = [(2, 0, 0), (6, 0, 0), (6, 2, 1)]


def tables(vocab_size, target_zeros, draft_zeros):
  rng = np.random.default_rng((vocab_size, target_zeros, draft_zeros))
  return (helpers.random_table(rng, vocab_size, target_zeros),
          helpers.random_table(rng, vocab_size, draft_zeros))


def method_name(method):
  return method.name


@pytest.mark.parametrize("method", METHODS, ids=method_name)
@pytest.mark.parametrize("sizes", PAIRS, ids=str)
def test_joint_law(method, sizes):
  target, draft = tables(*sizes)
  counts, stats = helpers.frequencies(method, target, draft, ROWS, LENGTH)
  law = helpers.joint_law(target, 0, LENGTH)
  assert helpers.p_value(counts, law) > helpers.MIN_P_VALUE
  assert np.asarray(stats.target_calls).min() >= 2


def test_joint_law_as_users_compile_it():
  """In a process without the flags that `conftest` compiles tests with."""
  script = ("import test_distribution as tests; "
            "tests.test_joint_law(tests.METHODS[4], tests.PAIRS[1]); "
            "print(tests.METHODS[4].name)")
  output, errors = helpers.start("-c", script, XLA_FLAGS="").communicate()
  assert output == "rsd_s(2x2)\n", errors


@pytest.mark.parametrize(
    "method", [dj.methods.rsd_c((3, 1)), dj.methods.rsd_s(3, 2)],
    ids=method_name)
def test_joint_law_of_three_siblings(method):
  target, draft = tables(5, 0, 0)
  counts, _ = helpers.frequencies(method, target, draft, ROWS, LENGTH)
  law = helpers.joint_law(target, 0, LENGTH)
  assert helpers.p_value(counts, law) > helpers.MIN_P_VALUE


# What the target's law is warped by, and the drafter's; None: likewise.
WARPS = [
    (dict(temperature=0.6), None),
    (dict(temperature=1.3, top_k=3, top_p=0.8), None),
    (dict(top_p=0.7), dict(temperature=2.0)),
    (dict(token_mask=np.array([1, 0, 1, 1, 1, 0], bool)), dict(top_k=2)),
    (dict(temperature=0.8), dict(temperature=0)),
]


# Laws are warped before a method sees them: one meets all warps.
@pytest.mark.parametrize("method,warps", [
    *((dj.methods.rsd_s(2, 2), warps) for warps in WARPS),
    (dj.methods.spectr(2, 2), WARPS[1])],
    ids=lambda x: getattr(x, "name", None) or "-".join(x[0]))
def test_joint_law_of_a_warped_target(method, warps):
  target, draft = tables(6, 0, 0)
  sampling, draft_sampling = warps
  counts, _ = helpers.frequencies(
      method, target, draft, ROWS, LENGTH, sampling=dj.Sampling(**sampling),
      draft_sampling=draft_sampling and dj.Sampling(**draft_sampling))
  law = helpers.joint_law(helpers.warped(target, **sampling), 0, LENGTH)
  assert helpers.p_value(counts, law) > helpers.MIN_P_VALUE


def sorted_siblings():
  """RSD-C, but with siblings in the order of their ids."""
  drafter = draft_lib.gumbel_top_k((2, 2))

  def expand(key, level, log_probs, valid, state):
    tokens, parents, valid, state = drafter.expand(key, level, log_probs,
                                                   valid, state)
    return tokens.reshape(-1, 2).sort(axis=1).ravel(), parents, valid, state

  return drafter._replace(expand=expand), verify.recursive(False)


def top_k_children():
  """RSD-C's rule over the most probable children."""
  return draft_lib.top_k((2, 2)), verify.recursive(False)


def with_taken_for_without():
  """Independent paths verified as if drawn without replacement."""
  return draft_lib.iid_paths(2, 2), verify.recursive(False)


def without_taken_for_with():
  """A stochastic beam verified as if drawn with replacement."""
  return draft_lib.stochastic_beam(2, 2), verify.recursive(True)


def target_for_residual():
  """What is rejected is not taken off the target's law."""
  rule = verify.recursive(False).rule
  return draft_lib.gumbel_top_k((2, 2)), verify.Verifier(
      lambda u, t, d, x, ok: (rule(u, t, d, x, ok)[0], t), True, False)


CONTROLS = [sorted_siblings, top_k_children, with_taken_for_without,
            without_taken_for_with, target_for_residual]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda f: f.__name__)
def test_control_fails(control):
  """Each of these is wrong, and the test of the joint law must see it."""
  pair = dj.Pair(*control())
  method = dj.Method(control.__name__, pair, pair)
  target, draft = tables(4, 0, 0)
  counts, _ = helpers.frequencies(method, target, draft, CONTROL_ROWS, LENGTH)
  law = helpers.joint_law(target, 0, LENGTH)
  assert helpers.p_value(counts, law) < helpers.MAX_P_VALUE_OF_CONTROL


def test_control_reused_randomness_fails(monkeypatch):
  """The same draws in every call."""
  keys = jax.random.split(jax.random.key(0), CONTROL_ROWS)
  monkeypatch.setattr(jax.random, "fold_in", lambda key, _: key)
  # New functions, so that no program compiled with this is used elsewhere.
  pair = dj.pair(draft_lib.gumbel_top_k((2, 1)),
                 verify.recursive.__wrapped__(False))
  target, draft = tables(4, 0, 0)
  counts, _ = helpers.frequencies(dj.Method("reused", pair, pair), target,
                                  draft, CONTROL_ROWS, LENGTH, key=keys)
  law = helpers.joint_law(target, 0, LENGTH)
  assert helpers.p_value(counts, law) < helpers.MAX_P_VALUE_OF_CONTROL
