"""The joint distribution of the first tokens through `generate`, by chi-square.

Trees of depth 1 and 2 emit at most 3 tokens a call: the 4 tokens that are
counted span at least two calls, each with branching. One-token marginals and
one-call tests miss errors that carry over from call to call.
"""

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.testing import exactness
from support import helpers
from support import example_methods
from support.example_methods import each

pytestmark = pytest.mark.usefixtures("optimised")

ROWS = 100_000
LENGTH = 4

METHODS = [*example_methods.PAIRS, dj.methods.rsd_c((2, 1)),
           dj.methods.rsd_s(2, 2)]
# Vocabulary and number of zeros in each target and each draft distribution;
# those of one vocabulary share their programs.
PAIRS = [(2, 0, 0), (6, 0, 0), (6, 2, 1)]


@pytest.mark.cases(20)
@pytest.mark.parametrize("method, sizes", [
    (method, sizes) for method in METHODS for sizes in PAIRS
    # No more siblings than tokens.
    if tree_lib.max_branching(method.sampled.drafter.layout) <= sizes[0]],
                         ids=lambda x: getattr(x, "name", str(x)))
def test_joint_distribution(method, sizes):
  target, draft = exactness.random_tables(*sizes)
  counts, stats = exactness.frequencies(method, target, draft, ROWS, LENGTH)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  assert np.asarray(stats.target_calls).min() >= 2


@pytest.mark.cases(4)
@each(filter(example_methods.drafts_by_a_model, METHODS))
def test_joint_distribution_of_a_cold_drafter(method):
  """Of nearly all its tokens the probability is less than float32 has."""
  target, draft = exactness.random_tables(*PAIRS[1])
  counts, _ = exactness.frequencies(
      method, target, draft, ROWS, LENGTH,
      draft_sampling=dj.Sampling(temperature=1e-3))
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE


@pytest.mark.long
def test_joint_distribution_as_users_compile_it():
  """In a process without the flags that `conftest` compiles tests with."""
  script = ("from library import test_distribution as tests; "
            "tests.test_joint_distribution(tests.METHODS[-1], tests.PAIRS[1]); "
            "print(tests.METHODS[-1].name)")
  output, errors = helpers.start(
      "-c", script, XLA_FLAGS="",
      JAX_DISABLE_MOST_OPTIMIZATIONS="0").communicate()
  assert output == "rsd_s(2x2)\n", errors
