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
from experiments.training import head_objectives
from experiments.training import losses
from support import tiny_models as tiny

_TARGET = dataclasses.replace(tiny.LLAMA, num_layers=3)
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


@pytest.mark.parametrize("name", sorted(head_objectives.KINDS.keys() - {"ppd"}))
def test_predictions_are_those_of_drafts(name):
  (kind, config, *_), params, tokens = made(name)
  _, own = tiny.random_model(_TARGET)
  _, features = head_objectives._scored(kind, _TARGET, own, tokens[:, :-1])
  predicted, places = kind.predict(config, _TARGET, params, own, features,
                                   tokens, _DEPTH)
  head = kind.module.head(config, _TARGET)
  root = 4  # A place of a root; pairs of all tokens before it are read.
  state = head.read(params, own, head.init(2, 32),
                    tuple(x[:, :root] for x in features), tokens[:, 1:root + 1],
                    jnp.full(2, root))
  newest = jnp.asarray(tokens[:, root])
  draft = head.start(params, own, state, newest, _DEPTH)
  chains = [expanders.grow_by(
      random.split(jax.random.key(0), 2),
      forced(tokens[row, root + 1:root + 4]), newest,
      lambda tree, level, nodes, draft: head.logits(
          params, own, state, draft, tree, level, nodes), draft,
      _TARGET.vocab_size, sampling.make_warper(
          dj.Sampling(temperature=5.0), 2, _TARGET.vocab_size))[0]
            for row in range(2)]
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
  (kind, config, *_), _, tokens = made("ppd")
  _, own = tiny.random_model(_TARGET)
  logits, features = head_objectives._scored(kind, _TARGET, own, tokens[:, :-1])
  anchor = 4
  params = {"prompts": own["embedding"][tokens[0, anchor + 1:][:_DEPTH]]}
  found, places = kind.predict(config, _TARGET, params, own, features, tokens,
                               _DEPTH)
  at, = np.flatnonzero(places[0] == anchor + 1)
  for level in range(_DEPTH):
    np.testing.assert_allclose(found[0, level, at],
                               logits[0, places[level, at]], atol=1e-4)


@pytest.mark.parametrize("name", ["eagle3", "dspark", "ppd"])
def test_a_head_learns(name):
  head, params, tokens = made(name)
  _, own = tiny.random_model(_TARGET)
  loss = head_objectives.objective(head, losses.forward_kl)
  batch = batches.whole(tokens)
  before, slope = jax.jit(jax.value_and_grad(loss))(params, batch, own)
  step = jax.tree.map(lambda x, g: x - 0.02 * g / jnp.sqrt(
      sum(jnp.vdot(y, y) for y in jax.tree.leaves(slope))), params, slope)
  assert np.isfinite(before) and loss(step, batch, own) < before
  metrics = head_objectives.evaluator(head)(params, batch, own)
  assert 0 < metrics["overlap"] < 1
  assert 1 < metrics["tokens_a_call"] < 1 + _DEPTH
