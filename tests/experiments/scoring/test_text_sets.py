"""Metrics of sets of texts, and the lines that `--texts` shows."""

from absl import flags
from absl.testing import flagsaver
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

import decoding_jax as dj
from experiments.app import launch
from experiments.flags import display_flags
from experiments.scoring import text_metrics

TEXTS = ["a cat sat on the mat today", "a cat sat on the mat", "no cat at all"]


def test_distinct_n_grams():
  assert text_metrics.distinct(["a b", "a c"], 1) == 0.75
  assert text_metrics.distinct(["a b", "a b", "a c d"], 2) == 0.75
  assert text_metrics.distinct(TEXTS[:1] * 3, 1) == pytest.approx(1 / 3)
  assert np.isnan(text_metrics.distinct(["a", ""], 2))


def test_self_bleu_is_that_against_the_others():
  expected = np.mean([
      sacrebleu.sentence_bleu(TEXTS[0], [TEXTS[1], TEXTS[2]]).score,
      sacrebleu.sentence_bleu(TEXTS[1], [TEXTS[0], TEXTS[2]]).score,
      sacrebleu.sentence_bleu(TEXTS[2], [TEXTS[0], TEXTS[1]]).score])
  assert text_metrics.self_bleu(TEXTS) == pytest.approx(expected)
  assert text_metrics.self_bleu(TEXTS[:1] * 2) == pytest.approx(100)
  assert np.isnan(text_metrics.self_bleu(TEXTS[:1]))


def generation(tokens, extra):
  zeros = jnp.zeros(len(tokens), jnp.int32)
  return dj.Generation(
      np.array(tokens), np.array([x.index(-1) for x in tokens]), None,
      dj.Stats(zeros, zeros, zeros, zeros, zeros, extra))


@pytest.fixture(name="texts")
def _texts():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(["test"])
  return lambda count, **others: flagsaver.as_parsed(texts=count, **others)


def report(out, rows=None):
  decode = lambda tokens: "".join(f"{x} " for x in tokens)
  return display_flags.more_texts(
      lambda count: generation(rows[:count], {}), out, np.array([2]), decode)


def test_texts_of_a_search(texts):
  """The best ones, without beams that only fill up; and none for one text."""
  extra = {"beams": np.array([[[3, 4], [3, -1], [5, 6]]]),
           "beam_lengths": np.array([[2, 1, 2]]),
           "beam_log_probs": np.array([[-1.0, -2.0, -np.inf]])}
  out = generation([[1, 2, 3, 4, -1]], extra)
  with texts("5"):
    *lines, line = report(out)
  assert lines == ["[1] 3 4 ", "[2] 3 "]
  assert line.startswith("2 texts: 2 different, distinct-1 0.67, distinct-2 1.")
  with texts("1"):
    assert not report(out)


def test_texts_of_other_methods_are_of_other_keys(texts):
  out = generation([[1, 2, 3, 4, -1]], {})
  with texts("3", reference="3 4 5 6"):
    *lines, line = report(out, [[1, 2, 3, 4, 5, 6, -1],
                                [1, 2, 7, -1, -1, -1, -1]])
  assert lines == ["[1] 3 4 ", "[2] 3 4 5 6 ", "[3] 7 "]
  assert "oracle BLEU " in line and line.endswith(" of 1, 100.0 of 2")


def test_flags_that_do_not_go_together(texts):
  with texts("2", stream="true"), pytest.raises(launch.UserError,
                                                match="--texts and --str"):
    display_flags.check([], dj.Sampling())
  with texts("1", reference="x"), pytest.raises(launch.UserError,
                                                match="--reference compares"):
    display_flags.check([], dj.Sampling())
