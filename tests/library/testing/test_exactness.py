"""Statistics of texts, and the program that tests methods by them."""

import numpy as np
import pytest

from decoding_jax.testing import exactness


def test_a_text_that_cannot_be_has_no_chance():
  probs = np.array([0.5, 0.5, 0.0])
  assert exactness.p_value(np.array([500, 500, 0]), probs) > 0.9
  assert exactness.p_value(np.array([500, 499, 1]), probs) == 0


def test_a_rare_text_proves_nothing():
  """It is one of 20 that are expected 0.1 times, and of 2 together."""
  probs = np.array([0.6, 0.398, *[1e-4] * 20])
  counts = np.array([600, 399, 1, *[0] * 19])
  assert exactness.p_value(counts, probs) > 0.5
  assert exactness.p_value(np.array([990, 0, 10, *[0] * 19]), probs) < 1e-9
  assert exactness.p_value(np.array([9]), np.array([1.0])) == 1


def test_beginnings_show_what_whole_texts_do_not():
  """0.016 of the first tokens, among 1,296 texts."""
  table = exactness.random_table(np.random.default_rng(0), 6)
  probs = exactness.joint_distribution(table, 0, 4)
  likely = np.argsort(table[0])[-2:]
  wrong = np.array(table[0])
  wrong[likely] += 0.016, -0.016
  draw = lambda probs: np.random.default_rng(0).multinomial(
      50_000, probs.ravel()).reshape(probs.shape)
  counts = draw(probs * (wrong / table[0])[:, None, None, None])
  assert exactness.p_value(counts, probs) < exactness.MIN_P_VALUE
  assert exactness.chi_square(counts, probs) > 0.1
  assert exactness.p_value(draw(probs), probs) > 0.01


@pytest.fixture(name="main")
def _main(python):
  """Status, output and errors of `experiments.exactness`."""
  def run(*flags):
    got = python("-m", "experiments.exactness", *flags)
    return got.status, got.output, got.errors

  return run


def test_main_tells_right_from_wrong(main):
  status, output, errors = main("--method=speculative(1)",
                                "--rows=20000", "--length=3")
  assert status == 0, errors
  lines = output.splitlines()
  assert [line.split()[-1] for line in lines[2:5]] == ["yes"] * 3
  assert lines[4].startswith("control: ")
  assert lines[-1].startswith("All 2 tests agree with the target's")


def test_main_tests_drafters_without_a_model(main):
  status, output, errors = main("--method=prompt_lookup(2, 2)", "--rows=5000",
                                "--length=3")
  assert status == 0, errors
  assert output.splitlines()[-1].startswith("All 2 tests agree with the")


def test_main_tells_a_method_of_another_distribution(main):
  status, output, errors = main("--method=beam_search(2)",
                                "--rows=2000", "--length=2")
  assert status == 2, output
  assert " NO" in output
  assert "beam_search(2): another distribution than the target's" in errors
