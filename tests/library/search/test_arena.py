"""A*, LiteSearch and PG-TD against heaps and dicts in plain Python."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import sampling as sampling_lib
from decoding_jax.kernels import random
from decoding_jax.testing import exactness
from library.search.lookahead import test_cdlh as cdlh
from support import lookahead_reference as reference
from support import arena_reference, helpers
from support import tiny_models as tiny

# The package has its `make` by this name.
lite_search_lib = importlib.import_module("decoding_jax.methods.lite_search")

ROWS = 12
SOME = slice(0, ROWS)
KEY = jax.random.key(5)
# Of LiteSearch and PG-TD, whose rewards are from 0 to 1.
SHARES = np.random.default_rng(11).beta(0.7, 0.7, (cdlh.ROWS, tiny.STATES)
                                        ).astype(np.float32)


def run(method, constraints=None, rows=SOME, **kwargs):
  return cdlh.run(method, seed=1, rows=rows, **{
      "constraints": cdlh.values(1) if constraints is None else constraints,
      **kwargs})


def rows_of(constraints=None, **kwargs):
  rows = list(cdlh.rows_of_tables(1, **kwargs))[SOME]
  if constraints is None:
    return rows
  return [row._replace(value=functools.partial(tiny.table_value, table))
          for row, table in zip(rows, constraints)]


def orders(out, name="expanded"):
  return [[x for x in row if x >= 0] for row in
          np.asarray(out.stats.extra[name]).tolist()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("options, eos", [
    ((3, 2, 8, 1.0, ()), cdlh.EOS), ((2, 2, 20, 1.0, ()), None),
    ((2, 3, 3, 0.0, (4, 5)), None)], ids=str)
def test_a_star_equals_a_heap(options, eos):
  """With expansions to spare, and without: then a text is completed."""
  k, steps, expansions, weight, pause = options
  rows = rows_of(eos=eos)
  expected = [arena_reference.a_star(row, *options) for row in rows]
  out = run(dj.methods.a_star(k, steps, expansions, pause, weight), eos_id=eos)
  assert orders(out) == [order for _, order in expected]
  assert tiny.texts(out, cdlh.LENGTHS[SOME]) == [text for text, _ in expected]
  np.testing.assert_array_equal(
      out.stats.extra["reward_calls"], [1 + k * len(x) for x in orders(out)])
  # Control: the other weight is another search.
  if eos is None:
    assert orders(out) != [
        arena_reference.a_star(row, k, steps, expansions, 1 - weight, pause)[1]
        for row in rows]


def test_fewer_tokens_than_children_and_texts_worth_nothing():
  allowed = np.arange(cdlh.V) < 2
  out = run(dj.methods.a_star(3, 2, 6), eos_id=None,
            sampling=dj.Sampling(0.0, token_mask=allowed))
  for text in tiny.texts(out, cdlh.LENGTHS[SOME]):
    assert set(text) <= {0, 1}
  out = run(dj.methods.pg_td(2, 4), np.full_like(SHARES, -np.inf), eos_id=None)
  np.testing.assert_array_equal(out.lengths, cdlh.LENGTHS[SOME] + cdlh.NEW)


def test_a_star_of_transformers():
  models, method = tiny.llama_models(), dj.methods.a_star(2, 3, 5)
  out = cdlh.transformers(method, models)
  expected = [arena_reference.a_star(row, 2, 3, 5)
              for row in cdlh.rows_of_transformers(models)]
  assert orders(out) == [order for _, order in expected]
  assert tiny.texts(out, tiny.LENGTHS) == [text for text, _ in expected]


def test_samples_of_a_star_are_the_models():
  """One child, no choice: texts have the distribution of the model."""
  target, draft = exactness.random_tables(4)
  method = dj.methods.a_star(1, 2, 1)
  counts, _ = exactness.frequencies(
      method, target, draft, 20_000, 3, reward=dj.rewards.length(0, 9))
  probs = exactness.joint_distribution(target, 0, 3)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Control: two children, the better one of which is taken.
  counts, _ = exactness.frequencies(
      dj.methods.a_star(2, 2, 1), target, draft, 20_000, 3,
      reward=tiny.sum_reward())
  assert exactness.p_value(counts, probs) < 1e-12


def sample_of(rows, key):
  """What LiteSearch draws: `row number -> (expansion, i, text) -> token`."""
  keys = jax.vmap(random.fold_in, (None, 0))(key, jnp.arange(len(rows)))

  @jax.jit
  def draw(key, expansion, i, logits):
    key = random.split(random.fold_in(random.fold_in(key, expansion), i), 1)[0]
    return sampling_lib.draw(key, jax.nn.log_softmax(logits))

  return lambda number: lambda expansion, i, text: int(draw(
      keys[number], expansion, i,
      jnp.asarray(rows[number].target(text), jnp.float32)))


def test_lite_search_equals_lists():
  rows, steps, expansions = rows_of(SHARES), 2, 12
  sample = sample_of(rows, KEY)
  expected = [arena_reference.lite_search(row, steps, expansions, sample(i))
              for i, row in enumerate(rows)]
  out = run(dj.methods.lite_search(steps, expansions), SHARES,
            sampling=dj.Sampling(), key=KEY)
  assert orders(out) == [order for _, order in expected]
  assert tiny.texts(out, cdlh.LENGTHS[SOME]) == [text for text, _ in expected]
  counts = {len(order) for _, order in expected}
  assert 0 in counts or len(counts) > 2
  # Control: another bound is another search.
  assert [order for _, order in expected] != [
      arena_reference.lite_search(row, steps, expansions, sample(i),
                                  min_value=0.2)[1]
      for i, row in enumerate(rows)]


def test_lite_search_by_logits():
  """It is the search by their sigmoid. Control: by themselves it is another."""
  logits = jax.scipy.special.logit(np.clip(SHARES, 1e-4, 1 - 1e-4))
  search = functools.partial(run, sampling=dj.Sampling(), key=KEY)
  shares = search(dj.methods.lite_search(2, 12), jax.nn.sigmoid(logits))
  match = search(dj.methods.lite_search(2, 12, logits=True), logits)
  assert orders(match) == orders(shares)
  np.testing.assert_allclose(match.stats.extra["node_values"],
                             shares.stats.extra["node_values"], atol=1e-6)
  assert orders(search(dj.methods.lite_search(2, 12), logits)) != orders(match)


def test_budgets_of_lite_search():
  """The worked example among them."""
  rng = np.random.default_rng(0)
  values = np.concatenate([[0.8, 0.0, 1.0], rng.random(300)])
  depths, greedy = rng.integers(0, 6, 303), np.where(
      np.arange(303) < 3, 0.5, rng.random(303))
  depths[:3] = [1, 0, 0]
  result = lite_search_lib.budget(
      0.9, 10, *(jnp.asarray(x, t) for x, t in (
          (values, jnp.float32), (depths, jnp.int32), (greedy, jnp.float32))))
  assert result.tolist() == [arena_reference.budget(v, d + 1, g) for v, d, g in
                             zip(values, depths, greedy)]
  assert result[0] == 2 and result[1] == 0 and set(result.tolist()) > {2, 4, 10}


@pytest.mark.parametrize("k, simulations, maximum", [
    (3, 14, np.inf), (2, 9, 0.7)])
def test_pg_td_equals_dicts(k, simulations, maximum):
  rows = rows_of(SHARES)
  expected = [arena_reference.pg_td(row, k, simulations, maximum)
              for row in rows]
  out = run(dj.methods.pg_td(k, simulations), SHARES,
            reward=tiny.table_reward(maximum))
  actual = [[[x for x in text if x >= 0] for text in row if text[0] >= 0]
            for row in np.asarray(out.stats.extra["simulated"]).tolist()]
  assert actual == [order for _, order in expected]
  assert tiny.texts(out, cdlh.LENGTHS[SOME]) == [text for text, _ in expected]
  np.testing.assert_array_equal(out.stats.extra["simulations"],
                                [len(order) for _, order in expected])
  # Control: other constants are another search.
  assert actual != [
      arena_reference.pg_td(row, k, simulations, maximum, c=0.5)[1]
      for row in rows]


def calls_of(row, order):
  """Target calls and texts of simulations that reuse what is known."""
  known, calls, texts = [], 1, 0  # Of the root.
  for text in order:
    whole = reference.follow(row, row.target, [*row.prompt, *text], row.new)
    whole = whole[len(row.prompt):]
    hit = any(begun <= len(text) and result[:len(text)] == text
              for begun, result in known)
    if not reference.ended(row, [*row.prompt, *text]):
      calls += 1 if hit else len(whole) - len(text)
    texts += not hit
    known.append((len(text), whole))
  return calls, texts


def test_pg_td_completes_no_text_twice():
  rows, (k, simulations) = rows_of(SHARES), (3, 14)
  out = run(dj.methods.pg_td(k, simulations), SHARES,
            reward=tiny.table_reward(np.inf))
  calls, texts = zip(*(calls_of(row, arena_reference.pg_td(
      row, k, simulations)[1]) for row in rows))
  np.testing.assert_array_equal(out.stats.target_calls, calls)
  np.testing.assert_array_equal(out.stats.extra["reward_calls"], texts)
  assert max(texts) < simulations


def test_pg_td_of_transformers():
  models, method = tiny.llama_models(), dj.methods.pg_td(2, 6)
  shares = SHARES[:3]
  out = cdlh.run_transformers(method, models, constraints=shares)
  rows = [row._replace(value=functools.partial(tiny.table_value, table))
          for row, table in zip(cdlh.rows_of_transformers(models), shares)]
  expected = [arena_reference.pg_td(row, 2, 6) for row in rows]
  assert tiny.texts(out, tiny.LENGTHS) == [text for text, _ in expected]
  np.testing.assert_allclose(out.stats.extra["reward"], [
      row.value(row.prompt + text)
      for row, (text, _) in zip(rows, expected)], rtol=1e-5)


@pytest.mark.parametrize("method", [
    dj.methods.a_star(1, 2, 3), dj.methods.pg_td(1, 2)],
                         ids=lambda x: x.name)
def test_without_a_choice_it_is_greedy(method):
  out = run(method)
  expected = run(dj.methods.autoregressive())
  np.testing.assert_array_equal(out.tokens, expected.tokens)
  np.testing.assert_allclose(out.log_probs, expected.log_probs, atol=1e-5)


def test_a_budget_of_one_token():
  rows = rows_of(SHARES, new=1)
  best = [max(arena_reference.ranked(row.target(row.prompt), 2),
              key=lambda x, row=row: row.value([*row.prompt, x]))
          for row in rows]
  out = run(dj.methods.a_star(2, 2, 3), SHARES, new=1)
  assert tiny.texts(out, cdlh.LENGTHS[SOME]) == [[x] for x in best]
  out = run(dj.methods.pg_td(2, 3), SHARES, new=1)
  assert tiny.texts(out, cdlh.LENGTHS[SOME]) == [
      arena_reference.pg_td(row, 2, 3)[0] for row in rows]


def test_rows_that_make_room_for_others():
  method = dj.methods.a_star(2, 2, 3)
  queued = tiny.generate(
      method, cdlh.tables(1), prompts=cdlh.PROMPTS[SOME],
      lengths=cdlh.LENGTHS[SOME], new=cdlh.NEW, sampling=cdlh.GREEDY, rows=4,
      reward=tiny.table_reward(), reward_params=1.0,
      constraints=cdlh.values(1)[SOME], eos_id=cdlh.EOS)
  helpers.check_same(queued, run(method))
