"""Shared Gumbel noise: one text of a key, whatever drafts it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import drafters, expanders, shared_noise
from decoding_jax.speculation.verifiers import shared_gumbel
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny

NAME = "shared_gumbel"
METHODS = [dj.methods.rsd_c((2, 2), NAME), dj.methods.rsd_s(3, 2, NAME),
           dj.methods.sequoia(((3,), (2, 0, 1)), NAME),
           dj.methods.speculative(3, NAME)]
V, NEW = 6, 9


def generate(method, target, draft, keys, new=NEW, **kwargs):
  """Texts after token 0 of tabular models."""
  prompts = np.zeros((len(keys), 1), np.int32)
  return jax.tree.map(np.asarray, dj.generate(
      keys, prompts, np.ones(len(keys), np.int32), method=method,
      max_new_tokens=new, **tiny.arguments(tiny.tables(target, draft)),
      **kwargs))


def oracle(target, keys):
  """The same texts from the definition, token after token."""
  noise_keys = shared_noise.noise_keys(keys, jnp.ones(len(keys), jnp.int32),
                                       NEW - 1)
  noise = np.asarray(jax.vmap(jax.vmap(lambda key: random.gumbel(key, V)))(
      noise_keys))
  texts = np.zeros((len(keys), 1 + NEW), np.int32)
  with np.errstate(divide="ignore"):
    scores = np.log(target)
  for i in range(NEW):
    texts[:, i + 1] = np.argmax(scores[texts[:, i]] + noise[:, i], axis=1)
  return texts


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_texts_are_those_of_the_noise_for_every_drafter(method):
  target, draft = exactness.random_tables(V, 2, 1)
  keys = jax.random.split(jax.random.key(3), 64)
  expected = oracle(target, keys)
  actual = [generate(method, target, x, keys) for x in (draft, draft[::-1])]
  for out in actual:
    np.testing.assert_array_equal(out.tokens, expected)
  if method is METHODS[0]:
    queued = generate(method, target, draft, keys[:10], rows=4)
    np.testing.assert_array_equal(queued.tokens, expected[:10])
  # The drafts do matter for the number of calls.
  calls = [out.stats.target_calls for out in actual]
  assert (calls[0] != calls[1]).any() and (calls[0] < NEW).any()


def test_a_single_draft_is_accepted_as_often_as_it_should_be():
  """By theorem 3.2 of arXiv 2408.07978; all contexts are alike."""
  target, draft = np.array([.5, .3, .2]), np.array([.2, .5, .3])
  expected = sum(1 / np.maximum(target / target[i], draft / draft[i]).sum()
                 for i in range(3))
  keys = jax.random.split(jax.random.key(0), 4000)
  out = generate(dj.methods.speculative(1, NAME), np.tile(target, (3, 1)),
                 np.tile(draft, (3, 1)), keys, new=8)
  # The first call of each row alone: the last one may be cut short.
  tested, hits = out.stats.target_calls.sum(), out.stats.accepted_by_depth
  share = hits[:, 1].sum() / tested
  assert abs(share - expected) < 5 * (expected * (1 - expected) / tested)**.5
  # Less than the optimal coupling, more than independent draws.
  assert (target * draft).sum() < share < np.minimum(target, draft).sum()


def test_a_draft_like_the_target_is_always_accepted():
  target, _ = exactness.random_tables(V)
  out = generate(METHODS[1], target, target,
                 jax.random.split(jax.random.key(1), 32))
  assert (out.stats.target_calls == NEW / 3).all()


def test_control_noise_that_is_used_again(monkeypatch):
  """The same noise in all steps: of tokens, the distribution; not of texts."""
  keys_of = shared_noise.noise_keys
  monkeypatch.setattr(shared_noise, "noise_keys",
                      lambda keys, length, depth: keys_of(keys, 0 * length,
                                                          depth))
  # New functions, so that no program compiled with this is used elsewhere.
  drafter = drafters.of_model.__wrapped__(
      expanders.product_tree((2, 1), dj.Draws.SHARED_NOISE))
  helpers.check_wrong(dj.pair(drafter, shared_gumbel.verifier.__wrapped__()),
                      4, rows=20_000, length=4)


def test_exponential_races_are_the_same_rule():
  """The first clock to ring, of rates t and common times (arXiv 2504.15475)."""
  target, draft = exactness.random_tables(V, 2, 1)
  keys = jax.random.split(jax.random.key(5), 64)
  out = generate(METHODS[0], target, draft, keys)
  noise_keys = shared_noise.noise_keys(keys, jnp.ones(64, jnp.int32), NEW - 1)
  times = np.exp(-np.asarray(jax.vmap(jax.vmap(
      lambda key: random.gumbel(key, V)))(noise_keys)))
  with np.errstate(divide="ignore"):
    rung = times / target[out.tokens[:, :-1]]
  np.testing.assert_array_equal(rung.argmin(axis=-1), out.tokens[:, 1:])
