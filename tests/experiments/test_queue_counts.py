"""Counts of a queue: no row waits for a prefill that rides in the steps."""

import pytest

import decoding_jax as dj
from experiments import queue_counts

ROWS = 4


@pytest.fixture(scope="module", name="queue")
def drawn():
  return queue_counts.draw(12, (40, 20), 0.7, seed=1)


def counts(queue, chunk):
  found = queue_counts.count(dj.methods.speculative(4), queue, ROWS, chunk)
  size = found.steps * ROWS
  assert found.writing + found.reading + found.idle == size
  assert found.writing > 0 and found.idle >= 0
  return found


@pytest.mark.long
def test_prefills_stop_the_others_unless_they_are_in_chunks(queue):
  before, after = counts(queue, 0), counts(queue, 8)
  assert before.writing == after.writing
  # Eight prompts find four rows, one of which is refilled at a time.
  assert (before.prefills, after.prefills) == (8, 0)
  assert before.reading == 0 < after.reading
  one = queue_counts.MOST[0] - 1
  assert before.pause >= one + 5 * ROWS and after.pause == 8 * ROWS


def test_methods_without_a_tree(queue):
  with pytest.raises(ValueError, match="beam_search.*draft trees is needed"):
    queue_counts.count(dj.methods.beam_search(2), queue, ROWS, 0)
