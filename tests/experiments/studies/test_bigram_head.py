"""Bigrams of texts as the bias of a head."""

import numpy as np
import pytest

from experiments.studies import bigram_head
from models import checkpoints

V = 4
TEXTS = [np.array([0, 1, 2, 0, 1, 3, 0, 1, 2, 2]), np.array([3, 0])]


def expected(prior):
  counts = np.zeros((V, V))
  for text in TEXTS:
    for before, after in zip(text[:-1], text[1:]):
      counts[before, after] += 1
  alone = (counts.sum(0) + 1) / (counts.sum() + V)
  given = (counts + prior * alone) / (counts.sum(1) + prior)[:, None]
  return np.log(given / alone)


def test_product_is_the_logarithm_of_what_a_bigram_adds():
  left, right = bigram_head.bigrams(TEXTS, V, V, prior=2.0)
  np.testing.assert_allclose(left @ right.T, expected(2.0), atol=1e-5)
  # Another prior is told apart.
  assert np.abs(left @ right.T - expected(1.0)).max() > .05


def test_rank():
  # Its rows sum to one under p(x | y), so that less rank loses something.
  errors = [np.abs(np.matmul(left, right.T) - expected(2.0)).max()
            for left, right in (bigram_head.bigrams(TEXTS, V, rank, 2.0)
                                for rank in (1, 2, V))]
  assert errors[0] > errors[1] > errors[2]
  assert errors[2] < 1e-5


def test_heads_with_a_bias_are_refused():
  target = checkpoints.architecture("python-target")
  assert bigram_head.opened("python-dflash", target)[0].markov_rank == 0
  for name in ("python-dspark", "python-eagle3"):
    with pytest.raises(ValueError, match=f"--head='{name}': a DFlash head"):
      bigram_head.opened(name, target)
