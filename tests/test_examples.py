"""Scripts of `examples`, with small sizes."""

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.long
def test_rollouts():
  names = runpy.run_path(str(EXAMPLES / "rollouts.py"))
  history = names["main"](steps=4, group=4, new_tokens=12, rounds=1)
  assert [figures["compiled"] for figures in history[1:]] == [0, 0, 0]
  assert max(figures["log_prob_error"] for figures in history) < 1e-3
  assert all(figures["tokens_per_call"] > 1.5 for figures in history)
  assert history[-1]["drafted"] > 0 < history[-1]["plain"]
