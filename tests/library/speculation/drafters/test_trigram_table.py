"""ADED: exact from any table, and the most probable nodes of the right one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.speculation.drafters import trigram_table
from decoding_jax.testing import drafter_conformance, exactness
from support import helpers

V, ROWS, LENGTH, BUCKETS = 5, 50_000, 4, 37
METHOD = dj.methods.aded(6, 3, 3, BUCKETS)


def start_table():
  rng = np.random.default_rng(3)
  tokens = np.stack([rng.permutation(V)[:3] for _ in range(BUCKETS)])
  tokens[::4, 1:] = -1
  return tokens.astype(np.int32), np.where(
      tokens < 0, 0, rng.uniform(size=tokens.shape)).astype(np.float32)


def target_table():
  return exactness.random_tables(V)[0]


def generate(method=METHOD, prompts=((0, 1, 2, 0, 1),), new=24, key=0,
             **arguments):
  lm, params = exactness.table_model(target_table())
  prompts = np.asarray(prompts, np.int32)
  return dj.generate(
      jax.random.key(key) if isinstance(key, int) else key, prompts,
      np.full(len(prompts), prompts.shape[1], np.int32), method=method,
      target=lm, target_params=params, max_new_tokens=new, **arguments)


def fit(method, table=None):
  counts, stats = exactness.frequencies(
      method, target_table(), target_table(), ROWS, LENGTH,
      draft_params=table or start_table())
  probs = exactness.joint_distribution(target_table(), 0, LENGTH)
  return exactness.p_value(counts, probs), stats


def test_joint_distribution():
  p_value, stats = fit(METHOD)
  assert p_value > exactness.MIN_P_VALUE
  assert 1 < np.mean(stats.target_calls) < LENGTH
  assert np.asarray(stats.extra["tested_by_rank"])[:, 1].sum() > ROWS / 10


def test_a_table_with_tokens_that_the_target_lacks():
  """A tokenizer may have more entries than a model."""
  tokens, scores = start_table()
  tokens[:, 0] += V
  p_value, _ = fit(METHOD, (tokens, scores))
  assert p_value > exactness.MIN_P_VALUE


def test_control_children_taken_for_samples():
  def propose(keys, context, state):
    tree, pending = METHOD.sampled.drafter.propose(keys, context, state)
    return tree.replace(log_probs=jnp.full(
        (*tree.tokens.shape, V), -np.log(V))), pending

  pair = dj.Pair(METHOD.sampled.drafter._replace(propose=propose),
                 verifiers.recursive(replacement=False))
  assert fit(dj.Method("wrong", pair, None))[0] < helpers.MAX_P_VALUE_OF_CONTROL


class Oracle:
  """The table in plain Python; it forgets as the drafter does."""

  def __init__(self, size):
    self.table = [[[-1, 0.0] for _ in range(size)] for _ in range(BUCKETS)]

  def bucket(self, first, second):
    mixed = (first * 0x9E3779B1 + second) % 2**32
    return self.table[(mixed ^ mixed >> 15) % BUCKETS]

  def learn(self, text, gain=0.2):
    for first, second, third in zip(text, text[1:], text[2:]):
      bucket = self.bucket(first, second)
      entry = next((x for x in bucket if x[0] == third), None)
      if entry is None:
        entry = min(bucket, key=lambda x: x[1])
        entry[:] = [third, 0.0]
      entry[1] = min(entry[1] + gain, 3.0)

  def chances(self, pair, depth):
    """Probabilities of all texts of up to `depth` tokens after a pair."""
    found = {}
    for token, score in self.bucket(*pair) if depth else ():
      if score:
        share = score / sum(x[1] for x in self.bucket(*pair))
        found[token,] = share
        found.update({(token, *path): share * chance for path, chance in
                      self.chances((pair[1], token), depth - 1).items()})
    return found


def test_the_most_probable_nodes_are_drafted():
  """After each step of a greedy text, by a table that knows it so far."""
  found, drafter = [], METHOD.greedy.drafter

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(lambda *x: found.append(x), tree, state.tokens,
                       state.length)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  prompt = np.random.default_rng(1).integers(0, V, (1, 40))
  generate(dj.Method("spied", pair, pair), prompt, sampling=dj.Sampling(0.0))
  jax.effects_barrier()
  for tree, tokens, length in found:
    tree = jax.tree.map(lambda x: np.asarray(x)[0], tree)
    text = np.asarray(tokens)[0, :int(length[0])].tolist()
    oracle = Oracle(3)
    oracle.learn(text)
    chances = oracle.chances(tuple(text[-2:]), 3)
    paths = [tuple(tree.tokens[np.flatnonzero(tree.mask[node])[1:]].tolist())
             for node in np.flatnonzero(tree.valid)[1:]]
    assert len(set(paths)) == len(paths) == min(6, len(chances))
    np.testing.assert_allclose(
        sorted((chances[path] for path in paths), reverse=True),
        sorted(chances.values(), reverse=True)[:len(paths)], rtol=1e-5)
  assert len(found) < 24


def test_a_window_gains_by_calls():
  """Each call adds to the tri-grams of the newest tokens, of running rows."""
  method = dj.methods.aded(6, 3, 3, BUCKETS, window=5)
  text = [0, 1, 2, 0]
  run = dj.begin(
      jax.random.key(0), np.array([text]), np.array([4]), method=method,
      target=exactness.table_model(target_table())[0],
      target_params=exactness.table_model(target_table())[1],
      max_new_tokens=9)
  oracle = Oracle(3)
  oracle.learn(text)
  for _ in range(9):
    more, _ = dj.step(run)
    text = np.asarray(more.tokens)[0, :int(more.lengths[0])].tolist()
    if not run.done.all():
      oracle.learn(text[-5:], 0.04)
    run = more
  tokens, scores = (np.asarray(x)[0] for x in run.state.carry)
  assert run.done.all()
  assert tokens.tolist() == [[x[0] for x in entry] for entry in oracle.table]
  np.testing.assert_allclose(scores, [[x[1] for x in entry]
                                      for entry in oracle.table], rtol=1e-5)


def test_scores_rise_to_a_most():
  oracle, text = Oracle(2), [*[1, 2, 3] * 20, 1, 2, 4, 1, 2, 0]
  oracle.learn(text)
  table = jnp.full((BUCKETS, 2), -1), jnp.zeros((BUCKETS, 2), jnp.float32)
  tokens, scores = trigram_table.learn(table, jnp.array(text), len(text) - 2)
  for (first, second), _ in itertools.groupby(itertools.pairwise(text)):
    at = int(trigram_table.bucket(np.array(first), np.array(second), BUCKETS))
    expected = oracle.bucket(first, second)
    assert tokens[at].tolist() == [x[0] for x in expected]
    np.testing.assert_allclose(scores[at], [x[1] for x in expected], rtol=1e-5)
  assert scores.max() == 3


def test_greedy_text_is_the_targets():
  plain, found = (generate(m, sampling=dj.Sampling(0.0))
                  for m in (dj.methods.autoregressive(), METHOD))
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  assert found.stats.target_calls.max() < plain.stats.target_calls.min()


def test_rows_learn_by_themselves():
  """A row's text does not depend on the batch, nor on the queue."""
  keys = jax.random.split(jax.random.key(1), 6)
  prompts = np.random.default_rng(0).integers(0, V, (6, 9))
  run = lambda chosen, **kwargs: generate(
      METHOD, prompts[chosen], 12, keys[chosen], draft_params=start_table(),
      **kwargs)
  together = run(np.arange(6))
  np.testing.assert_array_equal(together.tokens[4],
                                run(np.array([4])).tokens[0])
  helpers.check_same(run(np.arange(6), rows=2), together)


def test_contract_of_drafters():
  drafter_conformance.check_drafter(METHOD.sampled.drafter, rows=64,
                                    steps=2)


@pytest.mark.parametrize("table", [
    np.zeros((2, 2), np.int32), (np.zeros((3, 3)),) * 2], ids=["one", "small"])
def test_a_start_table_of_another_shape(table):
  with pytest.raises(ValueError, match="draft_params have shapes"):
    generate(draft_params=table)


def test_wrong_sizes():
  with pytest.raises(ValueError, match="buckets=0"):
    dj.methods.aded(6, 3, 3, 0)
  with pytest.raises(ValueError, match="simulations=5: 0, or .* from 6 on"):
    dj.methods.aded(6, 3, 3, simulations=5)
  with pytest.raises(ValueError, match="window=2: 0, or an integer from 3 on"):
    dj.methods.aded(6, 3, 3, window=2)
  with pytest.raises(ValueError, match="branching='3'"):
    drafters.aded(6, 3, "3", 4)
