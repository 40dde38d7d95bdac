"""Tests of the tests of other engines, on samples drawn here."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.testing import exactness
from experiments.rivals import engine_exactness, engines
from models import checkpoints, transformer
from support import helpers

ROWS, LENGTH, WINDOW = 100, 300, 3
# Stated beforehand; the seeds are fixed.
LEAST = exactness.MIN_P_VALUE


def draw(table, seed=0, repeat=0.0):
  """Samples `[ROWS, 1 + LENGTH]`; some tokens only repeat the one before."""
  rng = np.random.default_rng(seed)
  values = np.zeros((ROWS, 1 + LENGTH), int)
  for at in range(LENGTH):
    u = rng.random(ROWS)[:, None]
    fresh = (u > table[values[:, at]].cumsum(axis=1)).sum(axis=1)
    again = rng.random(ROWS) < repeat
    values[:, at + 1] = np.where(again, values[:, at], fresh)
  return np.minimum(values, len(table) - 1)


@pytest.mark.parametrize("zeros", [0, 2])
def test_samples_of_the_table_pass_and_others_fail(zeros):
  table, other = exactness.random_tables(6, zeros, zeros)
  texts = draw(table)
  assert engine_exactness.p_value(texts, table, WINDOW) > LEAST
  for wrong in (other, engine_exactness.flatter(table)):
    assert engine_exactness.p_value(texts, wrong, WINDOW) < LEAST
  assert engine_exactness.p_value(draw(table, repeat=0.05), table,
                                  WINDOW) < LEAST


def test_a_token_that_no_table_has_fails():
  table, _ = exactness.random_tables(6)
  texts = draw(table)
  texts[3, 7] = 6
  assert engine_exactness.p_value(texts, table, WINDOW) == 0


def test_a_llama_has_the_distributions_of_the_table(tmp_path):
  table, _ = exactness.random_tables(6, target_zeros=1)
  engine_exactness.write_table(tmp_path / "table", table)
  lm, params = checkpoints.load(tmp_path / "table")
  texts = jnp.asarray(np.arange(6)[None], jnp.int32)
  logits = np.asarray(transformer.causal_logits(lm, params, texts))[0]
  probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(probs[:, :6], table, atol=1e-6)
  assert probs[:, 6:].max() < 1e-30


def test_an_engine_that_fails_is_a_line(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", str(helpers.REPOSITORY / "tests"))
  monkeypatch.setattr(engine_exactness, "_ours", lambda *_: (
      np.zeros((1, 8), np.int32), np.zeros((1, 48), np.int32)))
  monkeypatch.setattr(engine_exactness.random_pair, "write", lambda *_: None)
  monkeypatch.setitem(engines.ENGINES, "fake", engines.Engine(
      "support.no_server", ()))
  [result] = engine_exactness.test("fake", 1, 30)
  assert not result.is_right and "No module named" in result.error
  # It repeats prompts of other lengths than were asked for.
  monkeypatch.setitem(engines.ENGINES, "fake", engines.Engine(
      "support.rival_server", ()))
  [result] = engine_exactness.test("fake", 1, 30)
  assert "48 were asked for" in result.error
  lines = engine_exactness.table([result]).splitlines()
  assert lines[2].split() == ["fake", "plain", "-", "-", "-", "NO"]
  assert lines[3].startswith("fake plain: texts of [8] tokens")


def test_verdicts():
  right = engine_exactness.Finding("x", (5, 5), 0.3, 1e-9)
  assert right.is_right
  for wrong in (right._replace(same=(4, 5)), right._replace(p_value=1e-7),
                right._replace(control=0.2), right._replace(error="why")):
    assert not wrong.is_right
