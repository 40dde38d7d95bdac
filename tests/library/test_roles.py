"""Drafter and target on devices of their own: the same texts."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import roles
from decoding_jax.testing import exactness
from support import helpers, on_roles, tiny_models as tiny


@pytest.fixture(name="runs", scope="module")
def _found():
  return helpers.found_by(on_roles.__file__)


@pytest.mark.long
def test_texts_and_counts_are_those_of_one_program(runs):
  assert len(runs["same"]) == 6
  assert all(map(all, runs["same"].values())), runs["same"]


@pytest.mark.long
def test_joint_distribution(runs):
  """Control: a draft that is a round old."""
  assert len(runs["p"]) == 4
  assert min(runs["p"].values()) > exactness.MIN_P_VALUE
  assert runs["control p"] < helpers.MAX_P_VALUE_OF_CONTROL


@pytest.mark.long
def test_each_group_has_its_own_parameters_and_caches(runs):
  assert runs["devices"] == {"_score": [0, 1], "_prepare": [2, 3]}


def generate(mesh, method, draft=None, **kwargs):
  lm, params = exactness.table_model(exactness.random_tables(6)[0])
  draft = draft or lm
  return roles.generate(
      jax.random.key(0), np.zeros((3, 1), np.int32), np.ones(3, np.int32),
      mesh=mesh, method=method, target=lm, target_params=params, draft=draft,
      draft_params=params, max_new_tokens=4, **kwargs)


def test_states_are_refused_as_on_one_device():
  """A round sets caches back, which a target with states cannot do."""
  target = tiny.random_model(tiny.DELTA)
  draft = tiny.random_model(tiny.LLAMA)
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 2), (roles.ROLE,))
  for method in (dj.methods.pearl(2), dj.methods.ssd(2, 2)):
    with pytest.raises(ValueError, match="sets a cache back to an earlier"):
      roles.generate(
          jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS, mesh=mesh,
          method=method, target=target.lm, target_params=target.params,
          draft=draft.lm, draft_params=draft.params, max_new_tokens=2)


def one_device(*names):
  return jax.sharding.Mesh(
      np.array(jax.devices()[:1]).reshape((1,) * len(names)), names)


def test_what_cannot_be():
  mesh, pearl = one_device("data"), dj.methods.pearl(2)
  lm, _ = exactness.table_model(exactness.random_tables(6)[0])
  reader = lm._replace(target_view=lambda cache: cache)
  for message, method, kwargs in (
      ("'data': 1}, one of two devices that is called 'role'", pearl, {}),
      (r"method speculative\(2\) does not draft while it verifies",
       dj.methods.speculative(2), {}),
      ("rows: not possible where", pearl, {"rows": 2}),
      ("shared_prefix: not possible", pearl, {"shared_prefix": np.zeros(2)}),
      ("draft: it reads what the target has cached|needs a draft",
       pearl, {"draft": reader})):
    with pytest.raises(ValueError, match=message):
      generate(mesh, method, **kwargs)
