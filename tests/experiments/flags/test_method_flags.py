"""Methods from flags: by name, with sizes of flags, of the text or of JSON."""

from absl import flags
from absl.testing import flagsaver
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.flags import method_flags


@pytest.fixture(name="sizes")
def _sizes():
  """A method by its name and flags, as `experiments.generate` has it."""
  def of(name, **values):
    with flagsaver.as_parsed(**values):
      return method_flags.from_flags(name)

  flags.FLAGS.mark_as_parsed()
  yield of
  flags.FLAGS.unparse_flags()


@pytest.mark.parametrize("values, method", [
    (dict(name="rsd_s", width="2"), dj.methods.rsd_s(2, 4)),
    (dict(name="rsd_c", branching="3,1"), dj.methods.rsd_c((3, 1))),
    (dict(name="sequoia"), dj.methods.sequoia(((2,), (2, 0), (1, 1)))),
    (dict(name="sequoia", children="2/0,1"),
     dj.methods.sequoia(((2,), (0, 1)))),
    (dict(name="beam_search", num_beams="3"), dj.methods.beam_search(3)),
    (dict(name="diverse_beam_search"), dj.methods.diverse_beam_search(4, 2)),
    (dict(name="autoregressive"), dj.methods.autoregressive())],
                         ids=lambda x: getattr(x, "name", str(x)))
def test_sizes_from_flags(sizes, values, method):
  assert sizes(**values).name == method.name


@pytest.mark.parametrize("spec, values, found", [
    ("rsd_c", dict(sizes='{"rounds": 5, "steps": [1, 2]}'), (5, (1, 2), 4)),
    ("rsd_c", dict(sizes='{"rounds": 5, "steps": 1}', depth="2"), (5, 1, 2)),
    ("rsd_c(5, steps=(1, 2))", dict(depth="3"), (5, (1, 2), 3))], ids=str)
def test_sizes_of_a_method_of_your_own(sizes, monkeypatch, spec, values, found):
  monkeypatch.setattr(
      dj.methods, "rsd_c", lambda rounds, steps, depth: dj.Method(
          str((rounds, steps, depth)), None, dj.methods.speculative(1).greedy))
  assert sizes(spec, **values).name == str(found)
  with pytest.raises(launch.UserError, match=(
      r"needs rounds, steps: --method='rsd_c\(rounds=2, steps=2\)', or "
      r'--sizes=\'{"rounds": 2, "steps": 2}')):
    sizes("rsd_c")


def test_sizes_without_a_flag_have_those_of_the_first_example(sizes):
  assert sizes("stochastic_beam_search").name == "stochastic_beam_search(4)"
  method = sizes("diverse_beam_search", num_groups="1").name
  assert method == "diverse_beam_search(1x4)"


def test_help_lists_the_examples():
  assert "rsd_s(width=3, depth=2), " in method_flags.help_text()
  text = method_flags.help_text("auto")
  assert text.startswith("Method, with sizes or without: auto, ")
  assert " autoregressive(), " in text


@pytest.mark.parametrize("values, message", [
    (dict(name="rsd_s", sizes="5"), "--sizes=5: sizes by their names"),
    (dict(name="rsd_s", sizes="{width: 5}"), "--sizes={width: 5}: no JSON"),
    (dict(name="rsd_s", sizes='{"rounds": 5}'), "rsd_s takes width, depth"),
    (dict(name="sequoia", children="2/x"), "--children: 'x' is no list of"),
    (dict(name="rsd_c", branching="2-1"), "--branching: '2-1' is no list"),
    (dict(name="sequoia", children="2/1"), r"children\[1\]=\(1,\): 2 integ"),
    (dict(name="beam_search", width="3"), "beam_search takes num_beams"),
    (dict(name="rsd_s", sizes='{"a": {"b": 1}}'),
     "--sizes: a={'b': 1}: a number, a string"),
    (dict(name="rsd_s", sizes='{"depth": 3}', depth="3"), "depth is given by"),
    (dict(name="rsd_s(3, 4)", depth="3"), "--method: rsd_s is given depth twi"),
    (dict(name="rsd_s(3", depth="3"), r"--method='rsd_s\(3': a method as"),
    (dict(name="cdsl"), "--method=cdsl is steered by a reward.*cdsl has"),
    (dict(name="best_of_n"), "--method=best_of_n is steered by a reward")],
    ids=str)
def test_sizes_that_cannot_be(sizes, values, message):
  with pytest.raises(launch.UserError, match=message):
    sizes(**values)
