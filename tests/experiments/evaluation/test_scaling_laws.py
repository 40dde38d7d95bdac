"""Tests of the laws of acceptance, their tables and their figure."""

import numpy as np
import pytest

from experiments.evaluation import scaling_laws

_SIZES, _TOKENS = (1000, 10_000, 40_000), (2**15, 2**16, 2**17)


def _record(size, tokens):
  """Overlap by a law; at temperature 1 the same, in calls of 16 prompts."""
  overlap = -0.3 + 0.05 * np.log10(size) + 0.1 * np.log10(tokens)
  calls = [10 + i % 3 for i in range(16)]
  return {"drafter": f"d{size}", "parameters": size, "tokens": tokens,
          "overlap": overlap, "decoded": [
              {"temperature": t, "target_calls": calls,
               "emitted": [round((1 + overlap) * 1000 * x) for x in calls]}
              for t in (0.0, 1.0)]}


def _records():
  return [_record(size, tokens) for size in _SIZES for tokens in _TOKENS]


def _laws():
  return scaling_laws.laws(scaling_laws.measured(_records()))


def test_a_law_is_found_again():
  law = _laws()["overlap"]["parameters and tokens"]
  np.testing.assert_allclose([law.constant, *law.slopes], [-0.3, 0.05, 0.1],
                             atol=1e-12)
  assert law.r2 == pytest.approx(1)


def test_laws_of_one_variable_are_of_the_largest_other():
  """Control: those of the smallest drafter have another constant."""
  found = _laws()["overlap"]
  law = found["tokens, 40,000 parameters"]
  assert law.slopes == pytest.approx((0.1,))
  assert law.constant == pytest.approx(-0.3 + 0.05 * np.log10(40_000))
  assert law.constant != pytest.approx(-0.3 + 0.05 * np.log10(1000))
  assert found["parameters, 131,072 tokens"].slopes == pytest.approx((0.05,))


def test_what_is_decoded_has_laws_of_its_own():
  """A thousand tokens for each call and unit of 1 + overlap."""
  law = _laws()["T = 1"]["parameters and tokens"]
  np.testing.assert_allclose([law.constant, *law.slopes], [700, 50, 100],
                             atol=0.5)


def test_noise_is_no_law():
  rng = np.random.default_rng(0)
  law = scaling_laws.fit([np.geomspace(1, 1e4, 200)], rng.normal(size=200))
  assert abs(law.r2) < 0.05


def test_of_equal_values_nothing_is_explained():
  assert np.isnan(scaling_laws.fit([[1, 10, 100]], [2, 2, 2]).r2)


def test_summary_and_figures(tmp_path):
  """A study that is not whole has empty places."""
  scaling_laws.write(tmp_path, _records()[:-1], "- About.")
  text = (tmp_path / "summary.md").read_text()
  assert "- About." in text
  assert "| overlap | parameters | 32,768 tokens | 65,536 tokens |" in text
  assert "| d1000 | 1,000 | 0.302 | 0.332 | 0.362 |" in text
  assert next(x for x in text.splitlines() if x.startswith("| d40000")
              ).endswith("| - |")
  assert "| overlap | parameters and tokens | -0.300 | +0.050 | +0.100 |" in (
      text)
  assert "nan" not in text and "None" not in text
  assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
  assert (tmp_path / "scaling.pdf").read_bytes().startswith(b"%PDF")


def test_tables_for_the_terminal():
  text = scaling_laws.terminal(_records())
  assert text.startswith("overlap  parameters  32,768 tokens")
  assert "±" in text and text.count("\n\n") == 3
