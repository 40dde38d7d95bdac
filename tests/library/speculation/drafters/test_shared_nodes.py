"""A node budget of all rows: which nodes, exact texts, packed scoring."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import scoring, tree as tree_lib
from decoding_jax.speculation.drafters import shared_nodes
from decoding_jax.testing import exactness
from decoding_jax.types import NONE
from models import transformer
from support import tiny_models as tiny

make = dj.methods.shared_budget


def test_the_best_nodes_of_all_rows():
  scores = jnp.log(jnp.array([[1, 0.5, 0.4, 0.45, 0], [1, 0.9, 0.4, 0.4, 0.1],
                              [1, 0, 0, 0, 0]]))
  chosen = shared_nodes.choose(scores, 5)
  # Of equal ones the first row's is taken.
  assert chosen.tolist() == [[True, True, True, True, False],
                             [True, True, True, False, False],
                             [True, False, False, False, False]]
  # What has no probability is never chosen.
  assert shared_nodes.choose(scores, 12).sum() == 3 + 7


def a_tree(tokens):
  """Two children of the root, and two of the first of them."""
  log_probs = jnp.log(jnp.array([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1],
                                 [0.4, 0.3, 0.3]]))
  return tree_lib.from_parents(
      jnp.array([tokens]), jnp.array([[NONE, 0, 0, 1, 1]]),
      jnp.ones((1, 5), bool)).replace(log_probs=log_probs[None])


def test_expected_acceptance():
  layout = tree_lib.beam_layout(2, 2)
  values = np.exp(shared_nodes.expected_acceptance(layout, a_tree(
      [0, 1, 2, 0, 1])))[0]
  root, child = (1 - 0.4 * (1 - x**3) for x in (0.5, 0.8))
  np.testing.assert_allclose(
      values, [1, root, root * (1 - root), root * child,
               root * child * (1 - child)], rtol=1e-5)
  # Nobody sees what the tokens of the last level are.
  np.testing.assert_array_equal(values, np.exp(shared_nodes.expected_acceptance(
      layout, a_tree([0, 1, 2, 2, 0])))[0])


def texts_of_two_rows(method, number, target, draft):
  """`[number, 2, 2]`, the first tokens of batches of two rows."""
  given = tiny.arguments(tiny.tables(target, draft))

  def run(key):
    return dj.generate(key, jnp.array([[0], [1]]), jnp.ones(2, jnp.int32),
                       method=method, max_new_tokens=2, **given).tokens[:, 1:]

  return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(
      jax.random.key(0), number)))


def test_rows_that_share_a_budget_are_independent():
  """One node for two rows, so that the draft of one takes that of the other."""
  target, draft = exactness.random_tables(3)
  got = texts_of_two_rows(make(0.5, 1, 2, "recursive"), 60_000, target, draft)
  counts = exactness.count(got.reshape(-1, 4), 3)
  rows = [exactness.joint_distribution(target, first, 2) for first in (0, 1)]
  assert exactness.p_value(counts, np.multiply.outer(*rows)) > (
      exactness.MIN_P_VALUE)


@pytest.mark.parametrize("verification", ["match", "shared_gumbel"])
def test_greedy_texts_and_the_budget(verification):
  models = tiny.llama_models()
  method = make(1, 3, 2, verification)
  out = tiny.generate(method, models, sampling=dj.Sampling(0.0))
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  # Three rows share three nodes a step.
  assert 0 < out.stats.nodes.sum() <= 3 * out.steps
  assert len(set(out.stats.nodes.tolist())) > 1


def test_greedy_texts_of_a_queue():
  models = tiny.llama_models()
  out = tiny.generate(make(1, 3, 2), models, sampling=dj.Sampling(0.0), rows=2)
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)


def test_shared_noise_has_one_text_in_any_batch():
  keys = jax.random.split(jax.random.key(7), 3)
  run = lambda rows: tiny.texts(tiny.generate(
      make(1, 3, 2, "shared_gumbel"), tiny.llama_models(), key=keys[rows],
      prompts=tiny.PROMPTS[rows], lengths=tiny.LENGTHS[rows]),
                                tiny.LENGTHS[rows])
  assert run(slice(0, 3)) == [run(slice(i, i + 1))[0] for i in range(3)]


CONFIGS = {
    "windows": dataclasses.replace(tiny.LLAMA, window=3, full_every=2),
    "learned positions": tiny.OPT, "experts": tiny.MIXTRAL,
    "latent": tiny.DEEPSEEK_2,
    "scanned": dataclasses.replace(tiny.LLAMA, scan_layers=True)}


@pytest.mark.cases(1)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_packed_nodes_are_scored_as_all_are(config):
  lm, params = tiny.random_model(config)
  lm = transformer.with_features(config, (0, config.num_layers))
  prompts = jnp.asarray(tiny.PROMPTS)
  valid = jnp.array([[True] * 4, [True, False, True, False],
                     [True, False, False, False]])
  tree = tree_lib.from_parents(
      jnp.array([[3, 4, 5, 6]] * 3), jnp.array([[NONE, 0, 0, 2]] * 3), valid)
  context = tiny.context(lm, params, prompts, jnp.asarray(tiny.LENGTHS), None)
  model = tiny.Model(lm, params)
  lengths = jnp.asarray(tiny.LENGTHS)
  cache = tiny.committed(model, prompts, lengths, 8)

  def run(score):
    return jax.jit(lambda cache, length: score(
        context, types.SimpleNamespace(target_cache=cache, length=length),
        tree))(cache, lengths + 1)

  expected, actual = map(run, (scoring.all_nodes, functools.partial(
      scoring.valid_nodes, lambda rows: rows + 2)))

  def same(x, y):
    np.testing.assert_allclose(np.asarray(x)[valid], np.asarray(y)[valid],
                               atol=1e-5)

  same(actual[0], expected[0])
  for x, y in zip(actual[1].features[dj.HIDDEN_STATES],
                  expected[1].features[dj.HIDDEN_STATES]):
    same(x, y)
  if not config.scan_layers:
    for x, y in zip(actual[1].values, expected[1].values):
      same(jnp.moveaxis(x, 2, 1), jnp.moveaxis(y, 2, 1))
