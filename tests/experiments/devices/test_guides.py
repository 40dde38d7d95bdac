"""Targets of several models and prompts, as a flag or a field names them."""

import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import drafts, guides, mesh, mesh_shapes, model_pair
from models import guided
from models.text import tokenizer_files
from support import helpers, tiny_tasks


@pytest.fixture(name="pair", scope="module")
def _pair(folders):
  return helpers.load_pair(*folders)


def decoded(pair, method=dj.methods.rsd_s(2, 2)):
  return np.asarray(tiny_tasks.decoded(
      model_pair.for_method(pair, method), method, new=12,
      lengths=np.array([3, 2])).tokens)


@pytest.mark.cases(2)
@pytest.mark.parametrize("spec,build", [
    ("contrastive(0.2, beta=2)", lambda pair, _: (
        guided.contrastive(pair.target, pair.draft, 0.2, 2),
        (pair.target_params, pair.draft_params))),
    ("contrastive(beta=2, alpha=0.2, amateur='{draft}')", lambda pair, _: (
        guided.contrastive(pair.target, pair.draft, 0.2, 2),
        (pair.target_params, pair.draft_params))),
    ("proxy_tuned('{target}', '{draft}', scale=3)", lambda pair, _: (
        guided.proxy_tuned(pair.target, pair.target, pair.draft, 3),
        (pair.target_params, pair.target_params, pair.draft_params))),
    ("classifier_free('ab', 4)", lambda pair, encode: guided.classifier_free(
        pair.target, pair.target_params, encode("ab"), 4.))])
def test_guided_texts_are_those_of_the_library(pair, folders, spec, build):
  """By a tree and without one. Control: the target alone writes others."""
  spec = spec.format(target=folders[0], draft=folders[1])
  encode = lambda text: tokenizer_files.encode(pair.tokenizer, text).ids
  target, params = build(pair, encode)
  expected = decoded(pair._replace(target=target, target_params=params))
  actual = guides.apply(pair, spec)
  np.testing.assert_array_equal(decoded(actual), expected)
  np.testing.assert_array_equal(
      decoded(actual, dj.methods.autoregressive()), expected)
  assert (decoded(pair) != expected).any()


@pytest.mark.parametrize("spec,error", [
    ("other(1)", "guide='other' is not one of contrastive, proxy_tuned, cla"),
    ("contrastive(", "guide='contrastive\\(': a call"),
    ("contrastive(1, 2, 'a', 3)", "contrastive takes alpha, beta, amateur"),
    ("contrastive(gamma=1)", "unexpected keyword argument 'gamma'"),
    ("contrastive(7)", r"guide='contrastive\(7\)': alpha=7: a number above 0"),
    ("contrastive(amateur=3)", "amateur=3: a model is needed"),
    ("contrastive(amateur='nowhere')", "model 'nowhere' is neither a folder"),
    ("contrastive(amateur='python-draft')", "draft' needs the target's token"),
    ("proxy_tuned('python-draft')", "missing a required argument: 'untuned'"),
    ("classifier_free('')", "negative_prompt=.*: some token ids")])
def test_errors(pair, spec, error):
  with pytest.raises(launch.UserError, match=error):
    guides.apply(pair, spec, "guide")


def test_what_has_one_target(pair, folders):
  on_mesh = mesh.with_params(model_pair.open_pair(*folders),
                             mesh_shapes.make((1, 1)))
  for other, message in (
      (pair._replace(draft=None), "name an amateur"),
      (on_mesh, "one device is needed"),
      (pair._replace(drafts=drafts.parse("python-eagle3")),
       "the head python-eagle3 reads")):
    with pytest.raises(launch.UserError, match=message):
      guides.apply(other, "contrastive")
  assert guides.apply(pair, "") is pair
