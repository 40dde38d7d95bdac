"""Python blocks of README, docs and notebooks run as they stand.

A document is one namespace, and its blocks run in order, as a reader would
paste them; from an empty folder, so that none depends on where it runs.
"""

import functools
import itertools
import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from models import tabular
from support import tiny_models as tiny

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PROCESSORS = ROOT / "docs" / "processors.md"
MODELS = ROOT / "docs" / "models.md"
OWN_MODELS = ROOT / "docs" / "your_model.md"
DRAFTS = ROOT / "docs" / "drafts.md"
METHODS = ROOT / "docs" / "methods.md"
DRAFTERS = ROOT / "docs" / "drafters.md"
ONE_STEP = ROOT / "examples" / "one_step.ipynb"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md")), ONE_STEP]
# What a document needs beside the packages of every test.
NEEDS = {"grammars.md": "llguidance"}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def blocks(text):
  """Returns the Python blocks of a text, each with its first line's number."""
  return [(text[:match.start(1)].count("\n") + 1, match[1])
          for match in _BLOCK.finditer(text)]


def read(path):
  """Returns the text of a document; of a notebook, its cells as blocks."""
  text = path.read_text("utf-8")
  if path.suffix != ".ipynb":
    return text
  return "\n".join("```python\n{}\n```".format("".join(cell["source"]))
                   for cell in json.loads(text)["cells"]
                   if cell["cell_type"] == "code")


def run(text, name):
  """Runs all blocks; returns the names that there are after each of them."""
  names, results = {"__name__": "__main__"}, []
  for line, block in blocks(text):
    # Errors tell the line of the document.
    code = compile("\n" * (line - 1) + block, name, "exec")
    exec(code, names)  # pylint: disable=exec-used
    results.append(dict(names))
  return results


@functools.lru_cache(maxsize=None)
def names_after(path):
  """Names after each block of a document, which runs once."""
  if path.name in NEEDS:
    pytest.importorskip(NEEDS[path.name])
  return run(read(path), str(path))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if blocks(read(path))],
    ids=lambda path: path.name)
def test_blocks_run(path):
  assert names_after(path)


def test_blocks_are_found_and_run_in_order():
  text = "a\n```python\nx = 1\n```\n```text\nx = 5\n```\n```python\nx += 1\n```"
  assert [names["x"] for names in run(text, "text")] == [1, 2]
  assert [line for line, _ in blocks(text)] == [3, 9]
  with pytest.raises(NameError):
    run("```python\nunknown\n```", "text")


def test_generation_of_the_readme():
  out = names_after(README)[0]["out"]
  assert out.tokens.shape == (2, 3 + 32)
  assert out.lengths.tolist() == [3 + 32, 2 + 32]


def method_modules():
  """Returns the blocks that are methods as modules, by their file and line."""
  modules = {}
  for path in DOCUMENTS:
    for line, block in blocks(read(path)):
      if "EXAMPLES = " in block:
        module = modules[path.name, line] = types.ModuleType(path.stem)
        exec(block, module.__dict__)  # pylint: disable=exec-used
  return modules


def test_methods_of_your_own_are_methods():
  modules = method_modules()
  assert {"README.md", "methods.md", "search.md", "drafters.md"} == {
      name for name, _ in modules}
  for module in modules.values():
    for example in module.EXAMPLES:
      assert isinstance(module.make(**example), dj.Method)
  [own] = [module for (name, _), module in modules.items()
           if name == "README.md"]
  assert own.make(width=4, depth=3).sampled.drafter.layout.widths == (4, 4, 4)
  assert [own.make(**x).name for x in own.EXAMPLES] == ["wide(3x2)"]


def test_loop_of_your_own():
  names = names_after(METHODS)[-1]
  assert names["out"].lengths.tolist() == [3 + 8, 2 + 8]
  assert names["info"].log_probs.shape == (2, 1 + 3 * 2, 50)


def test_decoder_of_your_own():
  """Where nothing else is plausible it is greedy; control: else it is not."""
  [make] = [module.make for module in method_modules().values()
            if "_step" in vars(module)]
  models = tiny.llama_models()
  texts = lambda method: tiny.texts(tiny.generate(
      method, models, sampling=dj.Sampling(temperature=0)), tiny.LENGTHS)
  greedy = texts(dj.methods.autoregressive())
  assert texts(make(1.0)) == greedy
  assert texts(make(0.1)) != greedy


def test_drafter_of_your_own_is_exact():
  """Its last block compares joint distributions; control: a greedy verifier."""
  names = names_after(DRAFTERS)[-1]
  # Tokens come again, so that some drafts are accepted.
  assert 1 < names["fit"].target_calls < 4.9
  drafter = names["make"](2).sampled.drafter
  wrong = dj.Method("wrong", dj.pair(drafter, verifiers.match()), None)
  with pytest.raises(AssertionError, match="wrong: "):
    dj.testing.assert_exact(wrong, rows=30_000, length=5)


def test_drafter_of_your_own_learns():
  """A text that repeats itself is drafted; the first round is not."""
  cycle = jnp.roll(jnp.eye(5), 1, axis=1)
  lm, params = tabular.TabularLM(jnp.log(cycle))
  out = dj.generate(
      jax.random.key(0), jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32),
      method=names_after(DRAFTERS)[0]["make"](2), target=lm,
      target_params=params, max_new_tokens=5 + 9)
  assert out.tokens[0].tolist() == [i % 5 for i in range(15)]
  # A token a call until each is known, then three.
  assert out.stats.target_calls.tolist() == [5 + 3]
  assert out.stats.draft_calls.tolist() == [0]


def test_models_of_the_docs():
  first, own = names_after(MODELS)[0], names_after(OWN_MODELS)[-1]
  assert own["out"].lengths.tolist() == [3 + 16]
  written = first["batching"].decode(first["tokenizer"], first["out"], [0, 0])
  assert [text[:9] for text in written] == ["def main(", "import os"]
  assert names_after(DRAFTS)[-1]["lookup"].vocab_size == 2000


def test_processors_of_the_docs():
  """One of a pattern is a model; your own never says a token three times."""
  names = names_after(PROCESSORS)[0]
  assert isinstance(names["target"], dj.LanguageModel)
  assert isinstance(names["target_params"], dj.processors.AppliedParams)
  names = names_after(PROCESSORS)[1]
  loop = tiny.Model(*tabular.TabularLM(9 * jnp.eye(tiny.LLAMA.vocab_size)))

  def longest(model):
    out = tiny.generate(dj.methods.speculative(1), tiny.Models(model, model),
                        sampling=dj.Sampling(temperature=0))
    return max(len(list(group)) for text in tiny.texts(out, tiny.LENGTHS)
               for _, group in itertools.groupby(text))

  assert longest(loop) > 2
  assert longest(tiny.Model(*dj.processors.apply(
      names["no_triples"], (), *loop))) == 2


def test_notebook_of_one_step():
  """All rules keep the target's distribution; the notebook is as it was run."""
  names = names_after(ONE_STEP)[-1]
  target, rows = names["t"], len(names["prompts"])
  for tokens in names["first"].values():
    share, error = target.max(), (target.max() / rows) ** 0.5
    assert abs((tokens == target.argmax()).mean() - share) < 4 * error
  assert np.abs(names["emitted"] - target).max() < 1e-6
  for name, info in names["infos"].items():
    assert dj.drawing.svg(info, names["words"]).count("<rect") > 9, name
  notebook = ONE_STEP.read_text("utf-8")
  assert str(ROOT) not in notebook and len(notebook) < 40_000


def test_pages_are_short():
  for path, most in ((README, 149), (DRAFTERS, 120)):
    assert len(path.read_text("utf-8").splitlines()) <= most, path
