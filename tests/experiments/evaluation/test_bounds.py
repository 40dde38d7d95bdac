"""Bounds of acceptance in runs of tabular models, whose nodes are all alike."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import acceptance_bounds
from experiments.devices import model_pair
from experiments.evaluation import bounds
from models.testing import exactness

TARGET, DRAFT = np.array([.5, .3, .2]), np.array([.2, .5, .3])
NEW = 12


def by_depth(method, temperature=1.0, rows=40, draft_sampling=None):
  """Of a target and a draft that say the same after every token."""
  (target, target_params), (draft, draft_params) = (
      exactness.table_model(np.tile(x, (3, 1))) for x in (TARGET, DRAFT))
  pair = model_pair.ModelPair(target, target_params, draft, draft_params, None,
                              1.0)
  batches = [(jax.random.split(jax.random.key(seed), rows // 2),
              np.zeros((rows // 2, 1), np.int32),
              np.ones(rows // 2, np.int32)) for seed in (0, 1)]
  return bounds.by_depth(pair, method, dj.Sampling(temperature), batches,
                         rows, draft_sampling, max_new_tokens=NEW)


@pytest.mark.cases(2)
@pytest.mark.parametrize("method, bound, counts", [
    (dj.methods.rsd_c((2, 1)), "without_replacement", (2, 1)),
    # Below the root a rule for paths may do better at a node.
    (dj.methods.rsd_c((2, 1), "traversal"), "without_replacement", (2, None)),
    (dj.methods.rsd_c((2, 1), "conditional_ot"), "greedy_and_sample",
     (2, None)),
    (dj.methods.rsd_s(2, 2), "without_replacement", (2, None)),
    (dj.methods.spectr(2, 1), "with_replacement", (2,)),
    (dj.methods.opt_tree(2, 2, 1), None, (None,))],
                         ids=lambda x: getattr(x, "name", ""))
def test_bounds_by_depth(method, bound, counts):
  known = bound and getattr(acceptance_bounds, bound)(
      TARGET[None], DRAFT[None], 2)[0]
  expected = [np.nan if count is None else known[count - 1]
              for count in counts]
  np.testing.assert_allclose(by_depth(method), expected, atol=1e-5)


def test_bounds_of_a_draft_at_its_own_temperature():
  draft = DRAFT**2 / (DRAFT**2).sum()
  known = acceptance_bounds.without_replacement(TARGET[None], draft[None], 2)
  np.testing.assert_allclose(
      by_depth(dj.methods.rsd_c((2, 1)), draft_sampling=dj.Sampling(0.5)),
      known[0][::-1], atol=1e-5)


def test_there_is_no_bound_for_one_token():
  assert np.isnan(by_depth(dj.methods.rsd_c((2, 1)), temperature=0)).all()


def test_places_are_the_nodes_that_were_tested():
  rng = np.random.default_rng(0)
  lengths = [np.array([4, 7, 8, 8]), np.array([2, 3, 5, 6])]
  found = [[x.tolist() for x in bounds._places(lengths, level, 99, rng)]
           for level in range(3)]
  assert [[sorted(x) for x in level] for level in found] == [
      [[4, 7], [2, 3, 5]], [[5], [4]], [[6], []]]
