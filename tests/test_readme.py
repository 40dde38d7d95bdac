"""Python blocks of README and docs run as they stand."""

import itertools
import pathlib
import re
import types

import jax.numpy as jnp
import pytest

import decoding_jax as dj
from models import tabular
from support import tiny_models as tiny

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PROCESSORS = ROOT / "docs" / "processors.md"
MODELS = ROOT / "docs" / "models.md"
METHODS = ROOT / "docs" / "methods.md"


def blocks(path=README):
  return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.S)


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
  assert [module.make(**x).name for x in module.EXAMPLES] == ["wide(3x2)"]


def method_module(number):
  """Returns a block of docs/methods.md as the module that it is."""
  module = types.ModuleType(f"method_{number}")
  exec(blocks(METHODS)[number], module.__dict__)  # pylint: disable=exec-used
  return module


def test_methods_of_your_own_are_methods():
  for number in range(len(blocks(METHODS))):
    module = method_module(number)
    for example in module.EXAMPLES:
      assert isinstance(module.make(**example), dj.Method)


def test_decoder_of_your_own():
  """Where nothing else is plausible it is greedy; control: else it is not."""
  make, models = method_module(1).make, tiny.llama_models()
  texts = lambda method: tiny.texts(tiny.generate(
      method, models, sampling=dj.Sampling(temperature=0)), tiny.LENGTHS)
  greedy = texts(dj.methods.autoregressive())
  assert texts(make(1.0)) == greedy
  assert texts(make(0.1)) != greedy


def test_models_of_your_own(monkeypatch):
  monkeypatch.chdir(ROOT)
  names = {}
  with tiny.quickly_compiled():
    for block in blocks(MODELS):
      exec(block, names)  # pylint: disable=exec-used
      names.setdefault("first", names.get("out"))
  assert names["out"].lengths.tolist() == [3 + 16]
  written = names["batching"].decode(names["tokenizer"], names["first"], [0, 0])
  assert [text[:9] for text in written] == ["def main(", "import os"]
  assert names["prompt_lookup"].language_model(2000).vocab_size == 2000


def test_processor_of_a_pattern_is_a_model(monkeypatch):
  pytest.importorskip("outlines_core")
  monkeypatch.chdir(ROOT)
  names = {"dj": dj}
  exec(blocks(PROCESSORS)[0], names)  # pylint: disable=exec-used
  assert isinstance(names["target"], dj.LanguageModel)
  assert isinstance(names["target_params"], dj.processors.AppliedParams)


def test_processor_of_your_own_never_says_a_token_three_times():
  names = {"dj": dj, "jnp": jnp}
  exec(blocks(PROCESSORS)[1], names)  # pylint: disable=exec-used
  loop = tiny.Model(*tabular.TabularLM(9 * jnp.eye(tiny.LLAMA.vocab_size)))

  def longest(model):
    out = tiny.generate(dj.methods.speculative(1), tiny.Models(model, model),
                        sampling=dj.Sampling(temperature=0))
    return max(len(list(group)) for text in tiny.texts(out, tiny.LENGTHS)
               for _, group in itertools.groupby(text))

  assert longest(loop) > 2
  assert longest(tiny.Model(*dj.processors.apply(
      names["no_triples"], (), *loop))) == 2


def test_readme_is_short():
  assert len(README.read_text("utf-8").splitlines()) < 150
