"""Budgets of nodes that rows share, as predicted from texts."""

import types

import numpy as np
import pytest

from decoding_jax.speculation import tree_planning
from experiments.timing import forward_cost
from experiments.timing import row_plans
from experiments.timing import text_estimates
from support import tiny_models as tiny

# Two kinds of positions: the draft is sure and right, or knows nothing.
_SURE = np.array([0.97, 0.01, 0.01, 0.01])
_FLAT = np.array([0.28, 0.24, 0.24, 0.24])


def text(draft, tokens, greedy=True):
  """A text whose prompt is one token."""
  target = np.eye(4)[tokens] if greedy else np.full((len(tokens), 4), 0.25)
  return text_estimates.Text(np.array([0, *tokens]), 1, target,
                             np.array(draft))


def of(texts, nodes, rows, depth=2):
  return float(row_plans.shared_tokens(
      *row_plans._beams(texts, 2, depth), 4, rows, nodes))


def test_nodes_go_where_the_draft_is_sure():
  """One node a row: of a sure row two are accepted, of a flat one few."""
  sure, flat = text([_SURE] * 4, [0] * 4), text([_FLAT] * 4, [3] * 4)
  assert of([sure], 1, 1) == 2 and of([sure], 2, 1) == 3
  assert of([flat], 2, 1) == 1
  # Three positions of each: together all nodes are those of the sure text.
  assert of([sure, flat], 1, 6) == pytest.approx(1 + 6 / 6)
  # A row alone spends its node, whatever comes of it.
  assert of([sure, flat], 1, 1) == pytest.approx(1 + 3 / 6)


def test_a_row_has_no_more_than_the_most():
  sure, flat = text([_SURE] * 4, [0] * 4), text([_FLAT] * 4, [3] * 4)
  beams = row_plans._beams([sure, flat], 2, 2)
  assert row_plans.shared_tokens(*beams, 1, 6, 1) == pytest.approx(1.5)


def test_the_draft_is_ranked_as_the_method_does():
  """At half the temperature of a greedy target alone."""
  probs = lambda greedy: row_plans._beams(
      [text([_FLAT] * 3, [0] * 3, greedy)], 4, 1)[0].max()
  assert probs(False) == pytest.approx(0.28)
  assert probs(True) == pytest.approx(0.28**2 / (_FLAT**2).sum())


def test_texts_that_are_too_short_say_nothing():
  assert of([text([_SURE], [0])], 1, 4, depth=2) == 1


def test_cheap_nodes_are_many_and_dear_ones_few():
  rng = np.random.default_rng(0)
  tokens = rng.integers(4, size=40)
  draft = 0.3 * np.eye(4)[tokens] + 0.7 * rng.dirichlet(np.ones(4), 40)
  best = lambda price: max(row_plans.plans(
      [text(draft, tokens)], tree_planning.Costs(
          lambda n: 1 + price * n, lambda n: 0.01, lambda *_: 0.0), 8),
                           key=lambda plan: plan.rate).spec["nodes"]
  assert best(0.01) > best(2) > 0
  for plan in row_plans.plans([text(draft, tokens)], tree_planning.Costs(
      lambda n: 1.0, lambda n: 0.0, lambda *_: 0.0), 8):
    assert 1 < plan.tokens <= 1 + plan.spec["depth"] and plan.rate == (
        plan.tokens)


def test_where_rows_share():
  model, head = tiny.llama_models().target, types.SimpleNamespace()
  pair = types.SimpleNamespace(target=model.lm, draft=model.lm)
  assert row_plans.applies(pair, 2) and not row_plans.applies(pair, 1)
  pair.draft = head
  assert not row_plans.applies(pair, 2)
  pair.draft, pair.target = model.lm, model.lm._replace(packs=False)
  assert not row_plans.applies(pair, 2)


def test_packed_forwards_are_timed(monkeypatch):
  """Of as many tokens as were asked for, laid out with room for more."""
  seen = []

  def timer(lm, params, batch, live, slots, size, packed=0):
    seen.append((size, packed))
    return lambda: float(packed)

  monkeypatch.setattr(forward_cost, "timer", timer)
  model = tiny.llama_models().target
  pair = types.SimpleNamespace(target=model.lm, target_params=model.params)
  found = row_plans.curve(pair, 4, 3, 32)
  assert found.tokens == row_plans._TOKENS and found.at(3) == 12
  assert seen == [(8, 6), (8, 12), (8, 20), (16, 36), (24, 52)]


def test_a_packed_forward_runs():
  model = tiny.llama_models().target
  seconds = forward_cost.timer(model.lm, model.params, 2, 3, 16, 4, packed=3)
  assert seconds() > 0
