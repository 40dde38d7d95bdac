"""Tests of generated code and of numbers in texts."""

import gzip
import json
import os
import pathlib

import numpy as np
import pytest

from experiments.data import prompt_tasks
from experiments.scoring import answers, text_metrics
from configs import tasks

_DATA = pathlib.Path(os.environ.get("DECODING_JAX_DATA", "."))


def test_exact_match():
  texts = ["so 3 + 4 = 7\n#### 7", "It is 1,234.50.", "7 then 8", "none", "-2",
           "none"]
  references = ["#### 7", "#### 1234.5", "#### 7", "#### 0", "#### 2",
                "none"]
  assert answers.exact_match(texts, references).tolist() == [
      100, 100, 0, 0, 0, 0]


@pytest.mark.parametrize("program, result", [
    ("assert sum([1, 2]) == 3", True),
    ("assert sum([1, 2]) == 4", False),
    ("while True: pass", False),
    ("x = bytearray(2**31)", False),
    ("import sys\nsys.exit(0)\nassert False", False),
    ("with open('a', 'w') as f: f.write('a')", False),
    ("return", False),
])
def test_passes(program, result):
  assert answers.passes(program) == result


def score(texts, program, stop="", metric="pass_at_1"):
  examples = prompt_tasks.Examples([[0]] * len(texts), [program] * len(texts),
                                   None, stop, (metric,))
  return prompt_tasks.score(examples, texts)[metric]


def test_code_ends_before_the_next_function():
  """Control: with all that follows it, the second fails."""
  task = tasks.get_tasks()["humaneval"]
  texts = ["  return 1\n", "  return 1\n\ndef g(:", "\n  return 2\n"]
  program = "def f():\n{completion}\n\nassert f() == 1"
  share, low, high = score(texts, program, task["stop"])
  np.testing.assert_allclose(share, 200 / 3, rtol=1e-6)
  assert low < share < high
  np.testing.assert_allclose(score(texts, program)[0], 100 / 3, rtol=1e-6)


@pytest.mark.skipif(not (_DATA / "prompts").is_dir(),
                    reason="DECODING_JAX_DATA names no folder of public files")
def test_solutions_of_humaneval():
  """All pass; controls: none without its last line."""
  rows = [json.loads(line) for line in gzip.open(
      _DATA / "prompts/HumanEval.jsonl.gz")][:8]
  reference = tasks.get_tasks()["humaneval"]["formats"]["completion"][
      "reference"]
  solve = lambda cut: text_metrics.CORPUS["pass_at_1"](
      [cut(row["canonical_solution"]) for row in rows],
      [reference.format_map(row) for row in rows])[0]
  assert solve(lambda text: text) == 100
  assert solve(lambda text: text.rstrip().rpartition("\n")[0] or "  pass") == 0
