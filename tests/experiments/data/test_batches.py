"""Windows for training and evaluation."""

import ml_collections
import numpy as np
import pytest

from experiments.data import batches

TOKENS = np.arange(1000, dtype=np.int32)
SAMPLES = -np.arange(1, 121, dtype=np.int32).reshape(6, 20)


@pytest.fixture(name="config")
def _config():
  return ml_collections.ConfigDict(
      dict(seed=0, windows=(8, 16), batch_tokens=64, sample_fraction=0.5))


def test_a_batch_is_a_function_of_its_step(config):
  shapes = [batches.train_batch(config, step, TOKENS).shape
            for step in range(3)]
  assert shapes == [(8, 9), (4, 17), (8, 9)]
  first, again, other = (batches.train_batch(config, step, TOKENS, SAMPLES)
                         for step in (4, 4, 6))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


def test_rows_are_stretches_of_text(config):
  batch = batches.train_batch(config, 0, TOKENS, SAMPLES)
  sampled = batch[:, 0] < 0
  assert sampled.sum() == 4
  assert (np.diff(batch[~sampled]) == 1).all()
  assert (np.diff(batch[sampled]) == -1).all()
  # A row of samples may be taken whole.
  config.windows = (19,)
  batch = batches.train_batch(config, 0, TOKENS, SAMPLES)
  assert set(batch[batch[:, 0] < 0, 0]) <= set(SAMPLES[:, 0])


def test_even_windows_cover_the_text():
  windows = batches.even_windows(TOKENS, 10**6, 50)
  assert windows.shape == (19, 51)
  assert windows[0, 0] == 0 and windows[-1, -1] == 999
  assert batches.even_windows(TOKENS, 3, 50).shape == (3, 51)
