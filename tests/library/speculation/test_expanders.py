"""Trees that the drafters grow, on tables and on a transformer with a cache."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import sampling
from decoding_jax.speculation import expanders, tree as tree_lib
from decoding_jax.testing import exactness
from decoding_jax.types import NONE, Draws
from support import helpers, tiny_models as tiny

# One of each kind, all of depth 2.
DRAFTERS = {
    "chain": expanders.gumbel_tree((1, 1)),
    "gumbel_tree": expanders.gumbel_tree((3, 2)),
    "top_k": expanders.top_k((2, 3)),
    "iid_paths": expanders.iid_paths(3, 2),
    "stochastic_beam": expanders.stochastic_beam(3, 2),
    "top_beam": expanders.top_beam(3, 2),
}
EACH = pytest.mark.parametrize("name", DRAFTERS)


@functools.partial(jax.jit, static_argnums=(1, 2))
def grow(keys, drafter, lm, params, cache, newest, length, warper):
  return expanders.grow(keys, drafter, lm, params, cache, newest, length,
                        warper)


def grow_on_table(drafter, table, rows=64, seed=0, **kwargs):
  """Trees below token 0, on the host; row i has its own key."""
  lm, params = exactness.table_model(table)
  keys = jax.random.split(jax.random.key(seed), rows)
  newest = jnp.zeros((rows, 2), jnp.int32)
  length = jnp.ones(rows, jnp.int32)
  warper = sampling.make_warper(sampling.Sampling(**kwargs), rows, len(table))
  tree, _ = grow(keys, drafter, lm, params, lm.init_cache(rows, 1), newest,
                 length, warper)
  return jax.tree.map(np.asarray, tree)


def table(size=5, zeros=0, seed=0):
  return exactness.random_table(np.random.default_rng(seed), size, zeros)


def walk(parents, node):
  """The node and its ancestors."""
  return [] if node == NONE else [node] + walk(parents, parents[node])


def check_tree(tree, layout):
  """Asserts what holds for every tree."""
  rows, size = tree.tokens.shape
  slices = tree_lib.level_slices(layout)
  assert size == slices[-1].stop
  assert tree.parents.shape == tree.valid.shape == (rows, size)
  assert tree.mask.shape == (rows, size, size)
  assert tree.tokens.dtype == tree.parents.dtype == np.int32
  assert (tree.parents[:, 0] == NONE).all() and tree.valid[:, 0].all()
  for above, level in itertools.pairwise(slices):
    parents = tree.parents[:, level]
    assert (above.start <= parents).all() and (parents < above.stop).all()
  for row in range(rows):
    parents, valid = tree.parents[row], tree.valid[row]
    for node in range(size):
      walked = np.isin(np.arange(size), walk(parents, node))
      np.testing.assert_array_equal(tree.mask[row, node], walked)
      assert valid[node] <= valid[walked].all()
  children = [np.bincount(p[1:], minlength=size) for p in tree.parents]
  for branching, level in zip(layout.branching, slices):
    assert np.max([c[level] for c in children]) <= branching
  assert not np.isnan(tree.log_probs).any()
  # What is valid has mass, at each step of its path.
  node = np.arange(1, size)
  parents = tree.parents[:, 1:]
  distributions = np.take_along_axis(tree.log_probs, parents[..., None], axis=1)
  log_probs = np.take_along_axis(distributions, tree.tokens[:, 1:, None],
                                 axis=2)
  assert np.isfinite(log_probs[..., 0][tree.valid[:, node]]).all()


@EACH
def test_trees_on_a_table(name):
  drafter, distributions = DRAFTERS[name], table()
  tree = grow_on_table(drafter, distributions)
  check_tree(tree, drafter.layout)
  assert tree.valid.all()
  inner = tree.log_probs.shape[1]
  assert inner == 1 + drafter.layout.widths[0]
  np.testing.assert_allclose(np.exp(tree.log_probs),
                             distributions[tree.tokens[:, :inner]], atol=1e-6)
  for parents, tokens in zip(tree.parents, tree.tokens):
    pairs = list(zip(parents[1:], tokens[1:]))
    assert name == "iid_paths" or len(set(pairs)) == len(pairs)
  # Keys matter to samples alone.
  differ = name not in ("top_k", "top_beam")
  assert (drafter.draws != Draws.ARBITRARY) == differ
  assert (len(np.unique(tree.tokens, axis=0)) > 1) == differ


@EACH
def test_less_support_than_siblings(name):
  """Nodes of probability zero are marked, and so are all that come of them."""
  drafter = DRAFTERS[name]
  tree = grow_on_table(drafter, table(5, zeros=3))
  check_tree(tree, drafter.layout)
  first, second = tree_lib.level_slices(drafter.layout)[1:]
  if name in ("iid_paths", "chain"):
    assert tree.valid.all()
    return
  siblings = drafter.layout.widths[0]
  assert (tree.valid[:, first].sum(axis=1) == min(2, siblings)).all()
  # Two valid parents with two tokens of mass each.
  room = 4 if "beam" not in name else min(4, drafter.layout.widths[1])
  assert (tree.valid[:, second].sum(axis=1) == room).all()


@EACH
def test_a_certain_distribution(name):
  drafter, size = DRAFTERS[name], 5
  tree = grow_on_table(drafter, np.roll(np.eye(size), 1, axis=1))
  check_tree(tree, drafter.layout)
  depths = tree_lib.depths(drafter.layout)
  right = tree.tokens == depths % size
  assert (tree.valid <= right).all()
  expected = drafter.layout.widths if name == "iid_paths" else (1, 1)
  for level, count in zip(tree_lib.level_slices(drafter.layout)[1:], expected):
    assert (tree.valid[:, level].sum(axis=1) == count).all()


def test_iid_paths_are_merged_at_their_first_twin():
  """Paths that agree in a token alone, and not before it, stay apart."""
  drafter = expanders.iid_paths(3, 3)
  tree = grow_on_table(drafter, table(3))
  check_tree(tree, drafter.layout)
  merged = 0
  for tokens, parents in zip(tree.tokens, tree.parents):
    texts = [(), (), ()]
    for start in (1, 4, 7):
      above = start - 3 if start > 1 else 0
      expected = [above + texts.index(text) for text in texts]
      assert parents[start:start + 3].tolist() == expected
      texts = [text + (token,) for text, token in
               zip(texts, tokens[start:start + 3].tolist())]
    merged += len({text[:2] for text in texts}) < 3
  assert 0 < merged < len(tree.tokens)


def test_merged_paths_are_still_independent():
  distributions = table(3, seed=1)
  tree = grow_on_table(expanders.iid_paths(2, 2), distributions, rows=40_000)
  tops = np.take_along_axis(tree.tokens, tree.parents[:, 3:], axis=1)
  paths = tops * 3 + tree.tokens[:, 3:]
  counts = exactness.count(paths, 9)
  probs = exactness.joint_distribution(distributions, 0, 2).ravel()
  p_value = exactness.p_value(counts, np.outer(probs, probs))
  assert p_value > exactness.MIN_P_VALUE


def test_paths_of_an_expansion_are_independent_given_what_they_share():
  """By enumeration; children of equal nodes hang from the first one."""
  distributions = table(2, seed=3)
  tree = grow_on_table(expanders.iid_tree((2, 2)), distributions, rows=40_000)
  tops = tree.tokens[:, 1:3]
  twins = tops[:, 0] == tops[:, 1]
  np.testing.assert_array_equal(tree.parents[twins, 3:], 1)
  np.testing.assert_array_equal(tree.parents[~twins, 3:],
                                np.tile([1, 1, 2, 2], ((~twins).sum(), 1)))
  counts, probs = exactness.count(tree.tokens[:, 1:], 2), np.zeros((2,) * 6)
  for a, b, *rest in itertools.product(range(2), repeat=6):
    probs[(a, b, *rest)] = distributions[0, a] * distributions[0, b] * np.prod(
        distributions[[a, a, b, b], rest])
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE


def test_gumbel_siblings_keep_draw_order():
  """By enumeration of the ordered children of both levels."""
  distributions = table(3, seed=2)
  tree = grow_on_table(expanders.gumbel_tree((1, 2)), distributions,
                       rows=40_000)
  counts, probs = exactness.count(tree.tokens[:, 1:], 3), np.zeros((3, 3, 3))
  for top in range(3):
    for i, j in itertools.permutations(range(3), 2):
      probs[top, i, j] = distributions[0, top] * distributions[
          top, i] * distributions[top, j] / (1 - distributions[top, i])
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Negative control: sorted siblings.
  mirrored = counts + counts.transpose(0, 2, 1)
  p_value = exactness.p_value(np.triu(mirrored), probs)
  assert p_value < helpers.MAX_P_VALUE_OF_CONTROL


def test_top_k_equals_numpy():
  distributions = table()
  tree = grow_on_table(DRAFTERS["top_k"], distributions)
  first = np.argsort(-distributions[0])[:2]
  second = np.argsort(-distributions[first], axis=1)[:, :3]
  assert tree.tokens[0].tolist() == [0, *first, *second.ravel()]
  assert tree.parents[0].tolist() == [NONE, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("drafter, width, depth", [
    (DRAFTERS["top_beam"], 3, 2), (expanders.top_beam(2, 3), 2, 3)])
def test_top_beam_equals_numpy(drafter, width, depth):
  distributions = table()
  tree = grow_on_table(drafter, distributions)
  beam, tokens, parents = [(1.0, 0)], [0], [NONE]
  for _ in range(depth):
    start = len(tokens) - len(beam)
    grown = sorted(((p * distributions[token, x], start + i, x)
                    for i, (p, token) in enumerate(beam) for x in range(5)),
                   reverse=True)[:width]
    beam = [(p, x) for p, _, x in grown]
    tokens += [x for _, _, x in grown]
    parents += [parent for _, parent, _ in grown]
  assert tree.tokens[0].tolist() == tokens
  assert tree.parents[0].tolist() == parents


def test_a_tree_of_a_root():
  newest = jnp.array([[3, 4], [1, 2]])
  tree, block = expanders.grow(
      jax.random.split(jax.random.key(0), 2), expanders.gumbel_tree(()), None,
      None, None, newest, jnp.array([5, 2]), None)
  assert block is None and tree.log_probs is None
  assert tree.tokens.tolist() == [[4], [2]]
  assert tree.parents.tolist() == [[NONE], [NONE]]
  assert tree.mask.tolist() == tree.valid[..., None].tolist() == [[[1]], [[1]]]


# Rows whose cache is complete, or lacks the late token; the first row has
# nothing but its root.
TEXTS = np.random.default_rng(0).integers(0, 13, (4, 6)).astype(np.int32)
ENDS = np.array([1, 6, 2, 5], np.int32)
CACHED = np.array([0, 5, 0, 3], np.int32)


def grow_on_transformer(drafter, config, temperature=0.7):
  """A tree, its block and the model, after `TEXTS` up to `ENDS`."""
  model = tiny.random_model(config)
  cache = tiny.committed(model, TEXTS, CACHED, 9)
  newest = np.maximum(ENDS[:, None] - [2, 1], 0)
  tree, block = grow(
      jax.random.split(jax.random.key(3), 4), drafter, model.lm, model.params,
      cache, jnp.asarray(np.take_along_axis(TEXTS, newest, axis=1)),
      jnp.asarray(ENDS),
      sampling.make_warper(sampling.Sampling(temperature=temperature), 4, 13))
  return jax.tree.map(np.asarray, tree), block, model


def texts_of_paths(tree):
  """Text and path of each inner node, padded to one shape, and lengths."""
  texts, lengths = [], []
  for row in range(len(tree.tokens)):
    for node in range(tree.log_probs.shape[1]):
      # The root is the newest token, which the text has already.
      path = walk(tree.parents[row], node)[::-1][1:]
      text = [*TEXTS[row, :ENDS[row]], *tree.tokens[row, path]]
      texts.append(text + [0] * (9 - len(text)))
      lengths.append(len(text))
  padding = [[0] * 9] * (4 * 4 - len(texts))
  return np.array(texts + padding, np.int32), np.array(lengths)


def gaps(tree, block, model, temperature=0.7):
  """How far a tree's distributions and keys are from plain forwards'."""
  texts, lengths = texts_of_paths(tree)
  logits, plain = tiny.causal(model, texts)
  at = np.arange(len(lengths)), lengths - 1
  probs = jax.nn.log_softmax(np.asarray(logits)[at] / temperature)
  rows, inner = tree.log_probs.shape[:2]
  distributions = np.abs(
      np.asarray(probs).reshape(tree.log_probs.shape) - tree.log_probs)
  keys = np.asarray(plain.keys[-1])[at[0], :, :, at[1]]
  keys = keys.reshape(rows, inner, *keys.shape[1:])
  values = np.moveaxis(np.asarray(block.keys[-1])[..., 1:], -1, 1)
  return distributions.max(), np.abs(keys - values).max()


# The deterministic drafters differ in `expand` alone, and families in their
# positions alone.
@pytest.mark.cases(1)
@pytest.mark.parametrize("name, config", [
    ("gumbel_tree", tiny.LLAMA), ("iid_paths", tiny.LLAMA),
    ("stochastic_beam", tiny.LLAMA), ("stochastic_beam", tiny.OPT)],
                         ids=lambda x: getattr(x, "positions", x))
def test_distributions_are_those_of_plain_forwards(name, config):
  drafter = DRAFTERS[name]
  tree, block, model = grow_on_transformer(drafter, config)
  check_tree(tree, drafter.layout)
  assert max(gaps(tree, block, model)) < 1e-4


def test_the_late_token_is_computed():
  """Slot 0 holds the keys of the token that the cache lacks."""
  _, block, model = grow_on_transformer(DRAFTERS["gumbel_tree"], tiny.LLAMA)
  _, plain = tiny.causal(model, TEXTS)
  for row in np.flatnonzero(CACHED == ENDS - 2):
    for actual, expected in zip(block.keys, plain.keys):
      np.testing.assert_allclose(actual[row, :, :, 0],
                                 expected[row, :, :, ENDS[row] - 2], atol=1e-5)


def wrong_late(*args, original):
  *args, late = args
  return original(*args, ~late)


def wrong_slot(*args, original):
  tokens, positions, slot, mask = original(*args)
  return tokens, positions, jnp.maximum(slot - 1, 0), mask


@pytest.mark.parametrize("wrong", [wrong_late, wrong_slot])
def test_control_wrong_forwards_are_seen(wrong, monkeypatch):
  monkeypatch.setattr(expanders, "_fresh", functools.partial(
      wrong, original=expanders._fresh))
  # Another object: the program of the right drafter must not be found.
  drafter = expanders.gumbel_tree((2, 1))
  tree, block, model = grow_on_transformer(drafter, tiny.LLAMA)
  assert max(gaps(tree, block, model)) > 1e-2
