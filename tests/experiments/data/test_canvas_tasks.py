"""List operations, grids, and their masks."""

import ml_collections
import numpy as np
import pytest

from experiments.app import launch
from experiments.data import (
    batches, canvas_tasks, masking, parallel_bench, streams)

EXAMPLES = canvas_tasks.draw(tuple(canvas_tasks.TASKS), 240, 0)
ANY = ("shuffle", "insert_any", "remove_any", "replace_any", "latin")


@pytest.mark.parametrize("name", canvas_tasks.TASKS)
def test_answers_are_right_and_others_are_not(name):
  results = [x for x in EXAMPLES if x[0] == name]
  for example in results:
    answer = canvas_tasks.canvas(example[3])
    assert canvas_tasks.is_right(example, answer)
    wrong = list(answer)
    wrong[0] = canvas_tasks.WORDS.index(canvas_tasks.NOTHING)
    assert not canvas_tasks.is_right(example, wrong)
  # Controls: two answers in each other's places, or the first word dropped.
  for (*first, _), (*_, answer) in zip(results, results[1:]):
    if first[2] != answer:
      assert not canvas_tasks.is_right((*first, None),
                                       canvas_tasks.canvas(answer))


@pytest.mark.parametrize("task, arguments, given, answer, right", [
    ("copy", "", "abcd", "abcd", True), ("copy", "", "abcd", "abdc", False),
    ("reverse", "", "abcd", "dcba", True), ("sort", "", "dbca", "abcd", True),
    ("shuffle", "", "abcd", "cabd", True),
    ("shuffle", "", "abcd", "cabb", False),
    ("insert", "x2", "abcd", "axbcd", True),
    ("insert", "x2", "abcd", "xabcd", False),
    ("insert_any", "x", "abcd", "abcdx", True),
    ("remove", "4", "abcd", "abc", True), ("remove", "4", "abcd", "abd", False),
    ("remove_any", "", "abcd", "acd", True),
    ("remove_any", "", "abcd", "abcd", False),
    ("replace", "x1", "abcd", "xbcd", True),
    ("replace_any", "x", "abcd", "abxd", True),
    ("replace_any", "x", "abcd", "abxx", False),
    ("sudoku", "", "12..3412........", "1234341221434321", True),
    ("sudoku", "", "21..3412........", "1234341221434321", False),
    ("sudoku", "", "................", "1234234134124123", False),
    ("latin", "", "abcd", "abcdbcdacdabdabc", True),
    ("latin", "", "abcx", "abcdbcdacdabdabc", False),
])
def test_what_is_right(task, arguments, given, answer, right):
  example = task, list(arguments), list(given), None
  assert canvas_tasks.is_right(example, canvas_tasks.canvas(list(answer))) == (
      right)


def test_grids_are_all_of_them_and_a_sudoku_has_one_solution():
  # Known counts of Sudokus and Latin squares of order 4.
  assert len({tuple(x) for x in parallel_bench.grids(True)}) == 288
  assert len({tuple(x) for x in parallel_bench.grids(False)}) == 576
  for _, _, given, answer in (x for x in EXAMPLES if x[0] == "sudoku"):
    fits = [grid for grid in parallel_bench.grids(True) if all(
        clue in (parallel_bench.BLANK, str(value + 1))
        for clue, value in zip(given, grid))]
    assert [str(value + 1) for value in fits[0]] == answer and len(fits) == 1


def test_words_are_tokens():
  tokenizer = canvas_tasks.tokenizer()
  assert tokenizer.get_vocab_size() == len(canvas_tasks.WORDS)
  for example in EXAMPLES[:12]:
    tokens = canvas_tasks.prompt(*example[:3])
    assert len(tokens) == canvas_tasks.PROMPT
    text = " ".join(canvas_tasks.WORDS[token] for token in tokens)
    assert tokenizer.encode(text).ids == tokens


def test_examples_are_functions_of_their_number():
  names = tuple(canvas_tasks.TASKS)
  assert canvas_tasks.draw(names, 5, 0, start=7) == EXAMPLES[7:12]
  assert canvas_tasks.draw(names, 12, 1) != EXAMPLES[:12]


@pytest.fixture(name="config")
def _config():
  return ml_collections.ConfigDict(dict(
      seed=0, batch_tokens=36 * 64, canvas_tasks=tuple(canvas_tasks.TASKS),
      masked=True, masked_suffix=0, tokenizer=""))


def test_masks_are_of_the_canvas_and_a_function_of_the_step(config):
  data = masking.masked(config, canvas_tasks.data(config,
                                                  canvas_tasks.tokenizer()))
  batch, again, other = (data.train(step, None) for step in (3, 3, 4))
  np.testing.assert_array_equal(batch.weights, again.weights)
  assert (batch.weights != other.weights).any()
  assert not batch.weights[:, :canvas_tasks.PROMPT - 1].any()
  np.testing.assert_allclose(batch.weights.sum(axis=1), 1, rtol=1e-6)
  few, many = data.held_out(3), data.held_out(5)
  np.testing.assert_array_equal(few.weights, many.weights[:3])


def test_windows_of_a_corpus_are_masked_too(config):
  config.update(windows=(8,), batch_tokens=64, sample_fraction=0.0)
  stream = np.arange(500, dtype=np.int32)
  masked = lambda: masking.masked(config, streams.windows(
      config, stream, stream[:90], None))
  batch = masked().train(0, None)
  assert batch.tokens.shape == (8, 9) and (batch.weights.sum(axis=1) > 0).all()
  assert masked().held_out(4).weights.shape == (4, 8)
  config.masked_suffix = 3
  np.testing.assert_allclose(masked().train(0, None).weights,
                             np.tile([0] * 5 + [1 / 3] * 3, (8, 1)))


def test_the_number_of_masks_is_uniform():
  may = np.zeros((20_000, 9), np.float32)
  may[:, 2:6] = 1
  rng = np.random.default_rng(0)
  masked = masking.mask(rng, batches.Batch(np.zeros((20_000, 10), int), may))
  counts = np.bincount((masked.weights > 0).sum(axis=1), minlength=5)
  assert counts[0] == 0 and np.abs(counts[1:] - 5000).max() < 300
  # Each place has the same share of the loss: the estimate is unbiased.
  np.testing.assert_allclose(masked.weights.mean(axis=0)[2:6], 0.25, atol=0.01)


@pytest.mark.parametrize("field, value, message", [
    ("canvas_tasks", ("copy", "paste"), "'paste' is not one of"),
    ("masked", False, "needs --config.masked=True")])
def test_settings_are_checked(config, field, value, message):
  config[field] = value
  with pytest.raises((ValueError, launch.UserError), match=message):
    canvas_tasks.check(config)
