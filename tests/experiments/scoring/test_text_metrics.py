"""Figures of texts against their references."""

import numpy as np
import pytest
import sacrebleu

from experiments.data import prompt_tasks
from experiments.scoring import text_metrics


def test_bleu_of_a_corpus():
  texts = ["the cat sat on the mat today", "a dog ran very far away", "yes"]
  references = ["the cat sat on a mat today", "a dog ran far away", "no"]
  value, low, high = text_metrics.corpus_bleu(texts, references)
  assert value == pytest.approx(
      sacrebleu.corpus_bleu(texts, [references]).score, abs=1e-5)
  assert low < value < high
  assert text_metrics.corpus_bleu(texts[:1], texts[:1]) == [100, None, None]


def test_scores():
  examples = prompt_tasks.Examples(
      [[1]] * 2, ["a cat sat", "no dog"], stop="\n",
      metrics=("rouge_2", "rouge_l"))
  got = prompt_tasks.score(examples, ["\n a cat ran\nand more", "dog"])
  np.testing.assert_allclose(got["rouge_2"], [25, 0, 50])
  assert got["rouge_l"][0] == pytest.approx(200 / 3, abs=1e-4)
  assert prompt_tasks.score(prompt_tasks.Examples([[1]]), None) == {}
