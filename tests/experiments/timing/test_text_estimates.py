"""Estimates of acceptance from texts, against runs of the methods."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree_planning
from experiments.timing import text_estimates
from models.testing import exactness

V, ROWS, NEW = 6, 400, 12
TABLES = exactness.random_tables(V)
MEASURED = tree_planning.Acceptance(np.array([.6, .3]), np.ones(5),
                                    np.array([.5]))


def texts_of(target, draft, rows=ROWS, seed=0):
  """Texts of a tabular target after token 0."""
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(rows):
    tokens = [0]
    for _ in range(NEW):
      tokens.append(rng.choice(V, p=target[tokens[-1]]))
    before = np.array(tokens[:-1])
    found.append(text_estimates.Text(np.array(tokens, np.int32), 1,
                                     target[before].astype(np.float32),
                                     draft[before].astype(np.float32)))
  return found


def measured_share(method, rows=4000):
  """The share of calls that accepted a draft, where nodes are the roots."""
  target, draft = TABLES
  models = {}
  for name, table in (("target", target), ("draft", draft)):
    models[name], models[f"{name}_params"] = exactness.table_model(table)
  out = dj.generate(jax.random.key(0), np.zeros((rows, 1), np.int32),
                    np.ones(rows, np.int32), method=method,
                    max_new_tokens=1 + NEW, **models)
  hits = np.asarray(out.stats.accepted_by_depth).sum(axis=0)
  return hits[1:].sum() / hits.sum()


def test_acceptance_is_that_of_runs():
  """Roots of runs are other places than all of a text, a little."""
  found = text_estimates.acceptances(texts_of(*TABLES), MEASURED)["match"]
  share = 1 - np.prod(1 - found.by_rank[:2])
  assert share == pytest.approx(measured_share(dj.methods.opt_tree(2, 2, 1)),
                                abs=0.04)


def test_equal_distributions_are_accepted():
  target, _ = TABLES
  found = text_estimates.acceptances(texts_of(target, target, 40), MEASURED)
  assert found["conditional_ot"].by_rank[0] > .98
  # Nothing is gained by looking at a path of ratios that are 1.
  np.testing.assert_allclose(found["traversal"].hazard, MEASURED.hazard,
                             rtol=1e-6)
  assert found["match"].by_rank[0] < .9


def test_paths_are_accepted_more_often_than_nodes():
  found = text_estimates.acceptances(texts_of(*TABLES, 100), MEASURED)
  assert found["traversal"].hazard[0] == pytest.approx(1)
  assert (found["traversal"].hazard[1:] > 1.01).all()
  between = (MEASURED.hazard + found["traversal"].hazard) / 2
  np.testing.assert_allclose(found["layer"].hazard, between)


def test_at_temperature_0_there_is_one_rule_of_each_tree():
  target = np.eye(V)[[1, 2, 3, 4, 5, 0]]
  found = text_estimates.acceptances(texts_of(target, TABLES[1], 3), MEASURED)
  assert found.keys() == {"recursive", "match"}
  assert found["recursive"] is MEASURED


def of_tokens(*tokens, start):
  target = np.eye(10)[list(tokens[start:])].astype(np.float32)
  return text_estimates.Text(np.array(tokens, np.int32), start, target, None)


def test_lookup_copies_what_followed_the_longest_latest_match():
  text = of_tokens(1, 2, 3, 1, 2, 4, 1, 2, 3, start=6)
  # Before 1: 4 is new. Before 2: [1, 2, 4] follows the match of 1. Before 3:
  # the latest 1, 2 was followed by 4.
  assert text_estimates.lookup_tokens([text], 3, 2) == pytest.approx(
      1 + (0 + 1 + 0) / 3)
  assert text_estimates.lookup_tokens([of_tokens(*[1, 2] * 4, start=4)], 2,
                                      3) == pytest.approx(1 + (2 * 3 + 1) / 4)


def test_steps_copy_where_enough_tokens_have_occurred():
  text = of_tokens(1, 2, 3, 1, 2, 4, 1, 2, 3, start=6)
  sizes = {"copies": 3, "min_ngram": 2, "max_ngram": 3}
  # 2, 4 is new: two tokens are drafted. Then 1, 2 was last followed by 4.
  assert text_estimates.copied_steps([text], sizes, 2.0) == (1.5, 0.5)
  assert text_estimates.copied_steps(
      [of_tokens(*[1, 2] * 6, start=4)], sizes, 2.0) == (3, 1)


def test_a_table_knows_the_latest_successor():
  text = of_tokens(1, 2, 1, 2, 1, 3, 1, start=1)
  ranks = text_estimates._table_ranks(text, 1)
  # Successors of 1: nothing, 2, then 2 where 3 comes; of 2: nothing, 1; of 3.
  assert (ranks == 0).tolist() == [False, False, True, True, False, False]
  found = text_estimates.successor_acceptance([text], 1)
  assert 0 < found.by_rank[0] < 1
