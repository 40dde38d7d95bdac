"""The package of methods: names, examples, files that are added."""

import importlib
import sys
import textwrap

import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.testing import exactness
from experiments.app import method_specs
from library import test_lowering
from support import example_methods

# A name of this test alone, since the import system remembers it.
NAME = "fan_of_a_test"
SOURCE = '''
    from decoding_jax.speculation import expanders, verifiers
    from decoding_jax.types import Method

    EXAMPLES = (dict(width=3), {"width": 2})

    def make(width):
      return Method(f"fan_of_a_test({width})",
                    sampled=verifiers.pair(expanders.gumbel_tree((width,)),
                                           verifiers.recursive(False)),
                    greedy=None)
'''


@pytest.fixture(name="add")
def _add(monkeypatch, tmp_path):
  """Adds a method file to the package; it is gone after the test."""
  def add(name, source):
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    importlib.invalidate_caches()

  monkeypatch.setattr(dj.methods, "__path__",
                      [*dj.methods.__path__, str(tmp_path)])
  yield add
  for path in tmp_path.glob("*.py"):
    sys.modules.pop(f"decoding_jax.methods.{path.stem}", None)
    vars(dj.methods).pop(path.stem, None)


def names(methods):
  return {method.name.split("(")[0] for method in methods}


def test_each_method_has_examples_that_are_methods():
  for name, result in dj.methods.examples().items():
    assert result, name
    for method in result:
      assert isinstance(method, dj.Method)
      assert names([method]) == {name}
      assert hash(method) is not None


def test_examples_are_the_methods_that_a_call_makes():
  result = dj.methods.examples()
  assert result["rsd_s"][0] is dj.methods.rsd_s(3, 2)
  assert result["rsd_s"] == dj.methods.examples()["rsd_s"]
  # They cannot be changed from outside.
  dj.methods.example_arguments()["rsd_s"][0]["width"] = 9
  assert dj.methods.example_arguments()["rsd_s"][0]["width"] == 3


def lists():
  """Returns the names of the methods in each list that is derived."""
  return {
      "names": set(dj.methods.names()),
      "exactness": names(exactness.tested_methods()),
      "tests": names(example_methods.drafting_and_verifying()),
      "lowering": names(test_lowering.methods())}


def test_a_file_that_is_added_is_in_every_list(add, monkeypatch):
  """Control: without the file it is in none."""
  assert not any(NAME in result for result in lists().values())
  add(NAME, SOURCE)
  assert all(NAME in result for result in lists().values()), lists()
  method = getattr(dj.methods, NAME)(width=3)
  assert method in dj.methods.examples()[NAME]
  assert method_specs.read(f"{NAME}(3)").name == method.name
  monkeypatch.setattr(sys, "argv", ["main", "--help"])
  assert method_specs.help_text().count(NAME) == 2


def test_files_without_make_or_examples_and_other_names(add):
  add("fan_of_a_test_2", SOURCE.replace("EXAMPLES", "OTHERS"))
  assert dj.methods.examples()["fan_of_a_test_2"] == ()
  assert dj.methods.fan_of_a_test_2(2).name == "fan_of_a_test(2)"
  for name in ("medusa", "_medusa", "__wrapped__"):
    with pytest.raises(AttributeError, match=name):
      getattr(dj.methods, name)
  add("no_method_of_a_test", "EXAMPLES = ()")
  with pytest.raises(ImportError, match="no_method_of_a_test.py is in the fol"):
    dj.methods.examples()


def test_equal_sizes_are_the_same_method_however_they_are_given():
  """Otherwise each call of a method would be compiled anew."""
  assert dj.methods.rsd_c([2, 1]) is dj.methods.rsd_c((2, 1))
  assert dj.methods.speculative(2) is dj.methods.speculative(2)
  assert dj.methods.rsd_s(2, depth=2) is dj.methods.rsd_s(2, 2)
  assert dj.methods.cdsl(2, num_candidates=3) is dj.methods.cdsl(
      num_candidates=3, lookahead=2, weight=1)
  with pytest.raises(TypeError, match=r"methods.rsd_s\(width: .*'depth'"):
    dj.methods.rsd_s(2)


def test_all_methods_draft_equally_deep_at_all_temperatures():
  for method in example_methods.METHODS:
    depths = {tree_lib.depth(kind.drafter.layout)
              for kind in (method.sampled, method.greedy)}
    assert len(depths) == 1
    # What divides by a draft distribution has samples of it.
    assert dj.pair(*method.sampled) == method.sampled
    assert method.greedy.verifier.takes == frozenset(dj.Draws)
