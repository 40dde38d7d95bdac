"""The trees of a completion, step by step."""

import re

from absl import flags
from absl.testing import flagsaver
import jax
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.flags import show_tree_flag
from support import helpers
from support import tiny_models as tiny

METHOD = dj.methods.rsd_s(2, 1)
ARGUMENTS = dict(method=METHOD, max_new_tokens=8, eos_id=None,
                 sampling=dj.Sampling())


@pytest.fixture(name="pair")
def _pair(folders):
  flags.FLAGS.mark_as_parsed()
  yield helpers.load_pair(*folders)
  flags.FLAGS.unparse_flags()


def test_trees_of_each_step(pair, capsys, tmp_path):
  """The text of `generate`; its tokens are the marked ones, in order."""
  keys = jax.random.split(jax.random.key(0), 1)
  arrays = keys, tiny.PROMPTS[:1], tiny.LENGTHS[:1]
  image = tmp_path / "trees.svg"
  with flagsaver.as_parsed(show_tree="true", tree_svg=str(image)):
    assert show_tree_flag.is_enabled()
    show_tree_flag.check([METHOD], dj.Sampling(), False)
    out, took = show_tree_flag.show(pair, *arrays, **ARGUMENTS)
  helpers.check_same(out, dj.generate(
      *arrays, target=pair.target, target_params=pair.target_params,
      draft=pair.draft, draft_params=pair.draft_params, **ARGUMENTS))
  printed = capsys.readouterr().out
  steps = re.findall(r"^step (\d+): (\d) drafts accepted, (\d) tokens", printed,
                     re.M)
  assert len(steps) == int(out.steps) and took == f"{len(steps)} steps"
  assert [int(x) for x, *_ in steps] == [*range(1, len(steps) + 1)]
  assert sum(int(x) for *_, x in steps) == 8
  marked = re.findall(r"^[*+] +('.*?'|\".*?\")(?:  |$)", printed, re.M)
  assert marked == [repr(pair.tokenizer.decode([x], skip_special_tokens=False))
                    for x in tiny.texts(out, arrays[2])[0]]
  assert image.read_text("utf-8").count("Step ") == len(steps)


@pytest.mark.parametrize("values, method, streams, message", [
    (dict(show_tree="true"), dj.methods.beam_search(2), False,
     r"--show_tree: method beam_search\(2\) drafts no tree"),
    (dict(tree_svg="x.svg"), dj.methods.pearl(2), False,
     r"--tree_svg: method pearl\(2\) drafts no tree"),
    (dict(show_tree="true"), METHOD, True, "--show_tree and --stream: either"),
    (dict(tree_svg="/no/such/x.svg"), METHOD, False,
     "--tree_svg=/no/such/x.svg: there is no such folder")],
                         ids=["beams", "pearl", "stream", "folder"])
def test_what_cannot_be_shown(pair, values, method, streams, message):
  del pair
  with flagsaver.as_parsed(**values):
    with pytest.raises(launch.UserError, match=message):
      show_tree_flag.check([method], dj.Sampling(), streams)


def test_trees_on_a_mesh_are_refused(pair):
  with pytest.raises(launch.UserError, match="--show_tree and --mesh"):
    show_tree_flag.show(pair._replace(mesh="a mesh"), None, None, None)
