"""The README's Python blocks run as they stand."""

import pathlib
import re
import types

import decoding_jax as dj

README = pathlib.Path(__file__).parents[1] / "README.md"


def blocks():
  return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)


def test_generation_runs():
  names = {}
  exec(blocks()[0], names)  # pylint: disable=exec-used
  out = names["out"]
  assert out.tokens.shape == (2, 3 + 32)
  assert out.lengths.tolist() == [3 + 32, 2 + 32]


def test_method_of_your_own_is_a_method():
  module = types.ModuleType("wide")
  exec(blocks()[1], module.__dict__)  # pylint: disable=exec-used
  method = module.make(width=4, depth=3)
  assert isinstance(method, dj.Method)
  assert method.sampled.drafter.layout.widths == (4, 4, 4)


def test_readme_is_short():
  assert len(README.read_text("utf-8").splitlines()) < 150
