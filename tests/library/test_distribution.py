"""Texts of every example through `generate`, by `dj.testing`.

Trees of depth 1 and 2 emit at most 3 tokens a call: the 4 tokens that are
counted span at least two calls, each with branching. One-call tests miss errors
that carry over from call to call.
"""

import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import example_methods, helpers
from support.example_methods import each

pytestmark = pytest.mark.usefixtures("optimised")

ROWS, LENGTH = 100_000, 4
METHODS = [*example_methods.PAIRS, dj.methods.rsd_c((2, 1)),
           dj.methods.rsd_s(2, 2)]
# Of each case. Rules alone are integrated and enumerated in `testing`.
CASES = dict(rows=40_000, length=LENGTH, vocab_sizes=(2, 6), integrate=False)


@pytest.mark.cases(8)
@each(METHODS)
def test_texts_have_the_distribution_of_the_target(method):
  report = dj.testing.assert_exact(method, **CASES)
  assert report.target_calls >= 2 and report.smallest_bias < 0.02


@pytest.mark.cases(2)
@each(filter(example_methods.drafts_by_a_model, METHODS))
def test_texts_of_a_cold_drafter(method):
  """Of nearly all its tokens the probability is less than float32 has."""
  dj.testing.assert_exact(
      method, *exactness.random_tables(6), rows=ROWS, length=LENGTH,
      draft_sampling=dj.Sampling(temperature=1e-3))


@pytest.mark.long
def test_texts_as_users_compile_them():
  """In a process without the flags that `conftest` compiles tests with."""
  script = ("from library import test_distribution as tests; "
            "tests.test_texts_have_the_distribution_of_the_target("
            "tests.METHODS[-1]); print(tests.METHODS[-1].name)")
  output, errors = helpers.start(
      "-c", script, XLA_FLAGS="",
      JAX_DISABLE_MOST_OPTIMIZATIONS="0").communicate()
  assert output == "rsd_s(2x2)\n", errors
