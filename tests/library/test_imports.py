"""The core is small: what a method stands on, and what a run of it loads."""

import functools
import json

import pytest

import decoding_jax as dj
from support import helpers

_COUNT = """
import json, pathlib, sys, types
import jax, numpy as np

def loaded():
  names = [x for x in sys.modules if x.split(".")[0] == "decoding_jax"]
  return {x: len(pathlib.Path(sys.modules[x].__file__).read_text().splitlines())
          for x in names if getattr(sys.modules[x], "__file__", None)}

# The two packages above the method, left empty.
tops = "decoding_jax", "decoding_jax.methods"
for name in tops:
  sys.modules[name] = types.ModuleType(name)
  sys.modules[name].__path__ = [name.replace(".", "/")]
from decoding_jax.methods import rsd_s
rsd_s.make(3, 2)
core = loaded()
for name in (*tops, "decoding_jax.methods.rsd_s"):
  del sys.modules[name]

import decoding_jax as dj
imported = loaded()
from models import tabular
lm, params = tabular.TabularLM(np.eye(5, dtype=np.float32))
dj.generate(jax.random.key(0), np.ones((1, 2), np.int32), np.array([2]),
            method=dj.methods.rsd_s(2, 1), target=lm, target_params=params,
            draft=lm, draft_params=params, max_new_tokens=2)
run = loaded()
import decoding_jax.methods.rsd_c
name = dj.methods.rsd_c((2, 2)).name
dj.processors.apply
grammars = [x for x in loaded() if x.startswith("decoding_jax.grammars")]
print(json.dumps([core, imported, run, name, grammars]))
"""


@functools.lru_cache(maxsize=None)
def loaded():
  """Lines of the modules of the method, of the import and of a run; a name of
  a method; and the grammars that are loaded with a processor."""
  output, errors = helpers.start("-c", _COUNT).communicate()
  assert output, errors
  return json.loads(output)


def test_the_core_is_read_in_an_afternoon():
  core, *_ = loaded()
  assert "decoding_jax.speculation.verifiers" in core
  assert len(core) <= 40, sorted(core)
  assert sum(core.values()) <= 5_600


def test_a_run_loads_few_modules():
  _, imported, run, *_ = loaded()
  assert len(imported) < len(run) <= 60, sorted(run)
  # No grammar, no search, no other method.
  for room in ("canvas", "grammar_aligned", "grammars", "processors", "search"):
    assert not [x for x in run if x.startswith(f"decoding_jax.{room}")]
  assert [x for x in run if x.startswith("decoding_jax.methods.")] == [
      "decoding_jax.methods.rsd_s"]


def test_processors_load_no_grammar_that_is_not_asked_for():
  assert loaded()[4] == []


@pytest.mark.parametrize("package", [
    dj, dj.methods, dj.processors, dj.speculation.drafters],
                         ids=lambda x: x.__name__)
def test_what_a_package_exports_is_there(package):
  assert set(package.__all__) <= set(dir(package))
  for name in package.__all__:
    assert getattr(package, name) is getattr(package, name)
  with pytest.raises(AttributeError, match=f"{package.__name__}.*no_such"):
    getattr(package, "no_such")


def test_a_file_that_is_imported_by_its_name_stands_as_its_method():
  assert loaded()[3] == "rsd_c(2-2)"
