"""Tests of the objectives of heads: what is trained is what drafts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import sampling
import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import expanders
from experiments.data import batches
from experiments.training import head_objectives, losses
from models import transformer
from support import tiny_models as tiny

_TARGET = dataclasses.replace(tiny.LLAMA, num_layers=3)
_MODEL = tiny.random_model(_TARGET)
_OWN = _MODEL.params
_DEPTH, _LENGTH = 3, 13


def forced(tokens):
  """A chain of these tokens, whatever is probable."""
  def expand(key, level, log_probs, valid, state):
    del key, log_probs
    return (jnp.asarray(tokens[level:level + 1], jnp.int32),
            jnp.zeros(1, jnp.int32), valid, state)

  return expanders.top_k((1,) * len(tokens))._replace(expand=expand)


def made(name):
  """A head, random parameters, and tokens `[2, T + 1]`."""
  head = head_objectives.choose(name, _TARGET, _DEPTH)
  tokens = np.random.default_rng(0).integers(
      _TARGET.vocab_size, size=(2, _LENGTH + 1)).astype(np.int32)
  return head, head_objectives.init(jax.random.key(1), head), tokens


def read(chosen, tokens):
  """What the head reads of all tokens but the last."""
  result = head_objectives.features(chosen, _OWN, jnp.asarray(tokens[:, :-1]))
  by_layer = dict(zip(chosen.features, result))
  return tuple(by_layer[i] for i in chosen.kept)


def larger(params):
  """Parameters of which each matters, those too that begin as zeros."""
  rng = np.random.default_rng(2)
  return jax.tree.map(lambda x: jnp.asarray(
      rng.normal(0, .24, x.shape), x.dtype) if x.ndim > 1 else x, params)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", sorted(head_objectives.KINDS.keys() - {"ppd"}))
def test_predictions_are_those_of_drafts(name):
  chosen, params, tokens = made(name)
  kind, config, params = chosen.kind, chosen.config, larger(params)
  features = read(chosen, tokens)
  predicted, places = jax.jit(lambda params, own, features: kind.predict(
      config, _TARGET, params, own, features, tokens, _DEPTH)[:2])(
          params, _OWN, features)
  head = kind.module.head(config, _TARGET)
  root = 4  # A place of a root; pairs of all tokens before it are read.
  newest = jnp.asarray(tokens[:, root])

  @jax.jit
  def chain(params, own, features, following):
    state = head.read(params, own, head.init(2, 32),
                      tuple(x[:, :root] for x in features),
                      tokens[:, 1:root + 1], jnp.full(2, root))
    return expanders.grow_by(
        random.split(jax.random.key(0), 2), forced(following), newest,
        lambda tree, level, nodes, draft: head.logits(
            params, own, state, draft, tree, level, nodes),
        head.start(params, own, state, newest, _DEPTH),
        _TARGET.vocab_size, sampling.make_warper(
            dj.Sampling(temperature=5.0), 2, _TARGET.vocab_size))[0]

  chains = [chain(params, _OWN, features, following)
            for following in tokens[:, root + 1:root + 4]]
  for level in range(_DEPTH):
    at, = np.flatnonzero(places[level] == root + level)
    expected = jax.nn.log_softmax(predicted[:, level, at] / 5)
    for row, tree in enumerate(chains):
      np.testing.assert_allclose(tree.log_probs[row, level], expected[row],
                                 atol=1e-4)


def test_prompt_tokens_are_compared_with_what_they_guess():
  """A chain says what the target would, were the tokens before it the text's.

  Embeddings of the text's own tokens are such a chain.
  """
  chosen, _, tokens = made("ppd")
  logits = transformer.causal_logits(*_MODEL, jnp.asarray(tokens[:, :-1]))
  features = read(chosen, tokens)
  anchor = 4
  params = {"prompts": _OWN["embedding"][tokens[0, anchor + 1:][:_DEPTH]]}
  result, places = chosen.kind.predict(chosen.config, _TARGET, params, _OWN,
                                       features, tokens, _DEPTH)
  at, = np.flatnonzero(places[0] == anchor + 1)
  for level in range(_DEPTH):
    np.testing.assert_allclose(result[0, level, at],
                               logits[0, places[level, at]], atol=1e-4)


def check_learns(head, params, batch, of_levels):
  """Asserts that a step along the slope makes the loss smaller."""
  loss = head_objectives.objective(head, of_levels)
  before, slope = jax.jit(jax.value_and_grad(loss))(params, batch, _OWN)
  assert 0 < before < np.inf
  step = jax.tree.map(lambda x, g: x - 0.02 * g / jnp.sqrt(
      sum(jnp.vdot(y, y) for y in jax.tree.leaves(slope))), params, slope)
  assert jax.jit(loss)(step, batch, _OWN) < before


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["eagle3", "dspark", "domino", "dflash2",
                                  "fspad", "hydra++",
                                  "clover", "chimera", "ppd"])
def test_a_head_learns(name):
  head, params, tokens = made(name)
  batch = batches.whole(tokens)
  check_learns(head, params, batch, losses.forward_kl)
  metrics = head_objectives.evaluator(head)(params, batch, _OWN)
  assert 0 < metrics["overlap"] < 1
  assert 1 < metrics["tokens_a_call"] < 1 + _DEPTH


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["medusa", "eagle3", "dspark", "fspad"])
def test_a_loss_of_paths(name):
  """Each entry is of one path of the text at all levels, and a head learns."""
  head, params, tokens = made(name)
  batch = batches.whole(tokens)
  result, _ = head_objectives._levels(head, params, batch, _OWN, False, True)
  student, places, *_ = head.kind.predict(
      head.config, _TARGET, params, _OWN, read(head, tokens), tokens,
      _DEPTH)
  root = 4
  n, = np.flatnonzero(places[0] == root)
  for level, (_, logits, weights, following) in enumerate(result):
    at, = np.flatnonzero(places[level] == root + level)
    np.testing.assert_allclose(logits[:, n], student[:, level, at], atol=1e-5)
    np.testing.assert_array_equal(following[:, n], tokens[:, root + level + 1])
    assert np.all(weights[:, n] == 1)
    assert np.all(weights[:, places[0] + level >= _LENGTH] == 0)
  check_learns(head, params, batch, losses.block_verification)


@pytest.mark.parametrize("name", ["medusa", "hydra", "chimera", "eagle3"])
def test_output_layers_begin_as_the_target_s(name):
  chosen, _, _ = made(name)
  random_, begun = (
      jax.tree_util.tree_leaves_with_path(head_objectives.init(
          jax.random.key(1), chosen, params)) for params in (None, _OWN))
  rows = _OWN["embedding" if _TARGET.tie_embeddings else "head"]
  outputs = 0
  for (path, x), (_, y) in zip(random_, begun):
    if x.shape[0] == _TARGET.vocab_size and x.ndim > 1:
      outputs += 1
      np.testing.assert_array_equal(y, np.tile(rows, (1, x.shape[1] // len(
          rows[0]))))
    else:
      np.testing.assert_array_equal(x, y, err_msg=str(path))
  assert outputs == (1 if name == "eagle3" else _DEPTH)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["eagle3", "mtp", "p-eagle", "dflash",
                                  "dspark", "domino", "dflash2"])
def test_a_draft_vocabulary(name):
  """Training compares what can be drafted; metrics are of all tokens."""
  tokens_ = np.array([0, 2, 3, 5, 9], np.int32)
  head = head_objectives.choose(name, _TARGET, _DEPTH, tokens_)
  params = head_objectives.init(jax.random.key(1), head)
  assert not set(params) & {"tokens", "output"}
  batch = batches.whole(made(name)[2])
  levels = {whole: head_objectives._levels(head, params, batch, _OWN, whole)[0]
            for whole in (False, True)}
  for few, all_ in zip(*(levels[x] for x in (False, True))):
    for i in range(2):
      np.testing.assert_allclose(few[i], all_[i][..., tokens_], atol=1e-5)
    others = np.setdiff1d(np.arange(_TARGET.vocab_size), tokens_)
    assert np.all(np.isneginf(all_[1][..., others]))
  loss = jax.jit(head_objectives.objective(head, losses.forward_kl))
  assert np.isfinite(loss(params, batch, _OWN))
  overlap = float(head_objectives.evaluator(head)(params, batch, _OWN)[
      "overlap"])
  teacher, student, weights, _ = levels[True][0]
  shared = np.minimum(jax.nn.softmax(teacher), jax.nn.softmax(student)).sum(-1)
  np.testing.assert_allclose(overlap, np.average(shared, weights=weights),
                             atol=1e-5)


def test_sizes_of_a_block_head():
  head = head_objectives.choose("dspark", _TARGET, _DEPTH, layers=1,
                                markov_rank=3)
  params = head_objectives.init(jax.random.key(1), head)
  assert head.config.layers.num_layers == 1 and head.config.markov_rank == 3
  whole = head_objectives.init(jax.random.key(1), made("dspark")[0])
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  assert count(params) < count(whole)


def test_features_of_a_batch_are_used():
  head, params, tokens = made("eagle3")
  batch = batches.whole(tokens)
  loss = jax.jit(head_objectives.objective(head, losses.forward_kl))
  kept = head_objectives.features(head, _OWN, jnp.asarray(tokens[:, :-1]))
  expected = loss(params, batch, _OWN)
  np.testing.assert_allclose(loss(params, batch._replace(features=kept), _OWN),
                             expected, rtol=1e-6)
  others = tuple(-x for x in kept)
  assert abs(loss(params, batch._replace(features=others), _OWN)
             - expected) > 1e-3


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_heads_that_draft_all_tokens(name):
  with pytest.raises(ValueError, match=f"head '{name}' drafts all tokens"):
    head_objectives.choose(name, _TARGET, _DEPTH, np.arange(3))


def test_features_are_compared_with_those_of_the_target():
  head, params, tokens = made("fspad")
  batch = batches.whole(tokens)
  whole, plain = (head_objectives.objective(x, losses.forward_kl)(
      params, batch, _OWN) for x in (head, head._replace(
          kind=head.kind._replace(feature_weight=0))))
  features = read(head, tokens)
  scale = _OWN["norm"]["scale"]
  x = np.asarray(features[0], np.float64)
  hidden = x / np.sqrt((x * x).mean(-1, keepdims=True) + _TARGET.norm_eps) * (
      scale[None, None])
  *_, actual = head.kind.predict(head.config, _TARGET, params, _OWN, features,
                                 tokens, _DEPTH)
  expected = []
  for level in range(_DEPTH):
    # Pair t stands for the token after it; the last one is beyond the window.
    gap = np.abs(actual[:, level, level:-1] - hidden[:, level + 1:])
    expected.append(np.where(gap < 1, gap**2 / 2, gap - .5).mean())
  weights = 0.8**np.arange(_DEPTH)
  np.testing.assert_allclose(
      whole - plain, 10 * np.average(expected, weights=weights), rtol=1e-4)
