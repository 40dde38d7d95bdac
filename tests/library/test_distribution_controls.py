"""Texts of warped targets, and of wrong rules.

A file of its own, so that another process can run it.
"""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.testing import exactness
from library.test_distribution import LENGTH, ROWS
from support import helpers

# Fewer already tell a wrong distribution.
CONTROL_ROWS = 50_000


# What the target's distribution is warped by, and the drafter's; None:
# likewise.
WARPS = [
    (dict(temperature=0.6), None),
    (dict(temperature=1.3, top_k=3, top_p=0.8), None),
    (dict(top_p=0.7), dict(temperature=2.0)),
    (dict(temperature=1.3, min_p=0.2), dict(min_p=0.5)),
    (dict(typical_p=0.6), dict(temperature=1.5)),
    (dict(token_mask=np.array([1, 0, 1, 1, 1, 0], bool)), dict(top_k=2)),
    (dict(temperature=0.8), dict(temperature=0)),
]


# Distributions are warped before a method sees them: one meets all warps.
@pytest.mark.cases(2)
@pytest.mark.parametrize("method,warps", [
    *((dj.methods.rsd_s(2, 2), warps) for warps in WARPS),
    (dj.methods.spectr(2, 2), WARPS[1])],
    ids=lambda x: getattr(x, "name", None) or "-".join(x[0]))
def test_joint_distribution_of_a_warped_target(method, warps):
  target, draft = exactness.random_tables(6)
  sampling, draft_sampling = warps
  dj.testing.assert_exact(
      method, target, draft, expected=helpers.warped(target, **sampling),
      rows=ROWS, length=LENGTH, sampling=dj.Sampling(**sampling),
      draft_sampling=draft_sampling and dj.Sampling(**draft_sampling))


def top_k_children():
  """RSD-C's rule over the most probable children."""
  return expanders.top_k((2, 2)), verifiers.recursive(False)


def with_taken_for_without():
  """Independent paths verified as if drawn without replacement."""
  return expanders.iid_paths(2, 2), verifiers.recursive(False)


def without_taken_for_with():
  """A stochastic beam verified as if drawn with replacement."""
  return expanders.stochastic_beam(2, 2), verifiers.recursive(True)


def target_for_residual():
  """What is rejected is not taken off the target's distribution."""
  rule = verifiers.recursive(False).rule
  return expanders.gumbel_tree((2, 2)), dj.Verifier(
      lambda u, t, d, x, ok: (rule(u, t, d, x, ok)[0], t),
      verifiers.recursive(False).takes)


CONTROLS = [top_k_children, with_taken_for_without, without_taken_for_with,
            target_for_residual]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda f: f.__name__)
def test_control_fails(control):
  """Each of these is wrong, and the joint distribution must show it."""
  expander, verifier = control()
  helpers.check_wrong(dj.Pair(drafters.of_model(expander), verifier), 4,
                      CONTROL_ROWS, LENGTH)


def test_control_reused_randomness_fails(monkeypatch):
  keys = jax.random.split(jax.random.key(0), CONTROL_ROWS)
  monkeypatch.setattr(random, "fold_in", lambda key, _: key)
  # New functions, so that no program compiled with this is used elsewhere.
  pair = dj.pair(expanders.gumbel_tree((2, 1)),
                 verifiers.recursive.__wrapped__(False))
  target, draft = exactness.random_tables(4)
  counts, _ = exactness.frequencies(dj.Method("reused", pair, pair), target,
                                    draft, CONTROL_ROWS, LENGTH, keys)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) < helpers.MAX_P_VALUE_OF_CONTROL
