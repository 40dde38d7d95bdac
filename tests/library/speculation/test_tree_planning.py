"""Plans: expected tokens by simulation, best trees by exhaustion."""

import itertools

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree_planning

ACCEPT = tree_planning.Acceptance(by_rank=np.array([.6, .3, .2]),
                                  hazard=np.array([1.0, .8]),
                                  beam=np.array([.5]))
ACCEPTS = {"recursive": ACCEPT}
FREE = tree_planning.Costs(target=lambda n: 1.0, draft=lambda n: 0.0,
                           rest=lambda levels, nodes: 0.0)


def chance(rank, depth):
  """Of a sibling, from the definition."""
  return 1 - (1 - ACCEPT.by_rank[rank])**ACCEPT.hazard[min(depth, 2) - 1]


def simulated(children, rows, seed):
  """Mean tokens of a step where siblings are accepted in turn."""
  rng = np.random.default_rng(seed)
  total = 0
  for _ in range(rows):
    node = 0
    for depth, counts in enumerate(children, 1):
      hits = [rng.random() < chance(rank, depth)
              for rank in range(counts[node])]
      total += 1
      if not any(hits):
        break
      node = sum(counts[:node]) + hits.index(True)
    else:
      total += 1
  return total / rows


@pytest.mark.parametrize("children", [
    ((1,),), ((3,),), ((2,), (2, 1)), ((3,), (0, 1, 2), (1, 0, 0))], ids=str)
def test_expected_tokens(children):
  rows = 20_000
  # Steps have 1 to 4 tokens: a standard error is at most 1.5 / sqrt(rows).
  assert abs(tree_planning.expected_tokens(children, ACCEPT) -
             simulated(children, rows, 0)) < 5 * 1.5 / rows**.5


def trees(nodes, depth):
  """All trees of at most so many nodes and levels, with 3 siblings at most."""
  def extend(levels, width, left):
    yield tuple(levels)
    if len(levels) < depth:
      for counts in itertools.product(range(4), repeat=width):
        if 0 < sum(counts) <= left:
          yield from extend([*levels, counts], sum(counts), left - sum(counts))

  return [tree for tree in extend([], 1, nodes) if tree]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_best_trees_are_the_best_of_all(depth):
  values = {}
  for tree in trees(5, depth):
    size = sum(map(sum, tree))
    values[size] = max(values.get(size, 0),
                       tree_planning.expected_tokens(tree, ACCEPT))
  most = list(itertools.accumulate((values[n] for n in sorted(values)), max))
  found = [tree_planning.expected_tokens(tree, ACCEPT)
           for tree in tree_planning.best_trees(ACCEPT, 5, depth)]
  np.testing.assert_allclose(found[:len(most)], most, rtol=1e-12)
  assert len(found) == 5


def test_free_nodes_are_all_used():
  best = tree_planning.plans(ACCEPTS, FREE, nodes=12, depth=4)[0]
  assert best.spec["name"] in ("sequoia", "rsd_s") and best.tokens > 2


def test_speculation_that_cannot_pay():
  dear = FREE._replace(target=float)
  assert tree_planning.plans(ACCEPTS, dear, nodes=12, depth=4)[0].spec == {
      "name": "autoregressive"}


def test_a_chain_where_nodes_are_dear():
  some = FREE._replace(target=lambda n: 1 + .3 * (n - 1))
  best = tree_planning.plans(ACCEPTS, some, nodes=12, depth=4)[0]
  assert best.spec["name"] == "speculative"


def test_stems_and_ways_to_verify():
  """Trees that begin with a single path; the usual names are left out."""
  found = [plan.spec for plan in tree_planning.plans(
      {"recursive": ACCEPT, "traversal": ACCEPT, "conditional_ot": ACCEPT},
      FREE, nodes=5, depth=3)]
  assert {"name": "rsd_c", "branching": (1, 2, 1)} in found
  assert {"name": "rsd_c", "branching": (1, 2, 1),
          "verification": "conditional_ot"} in found
  assert {"name": "speculative", "depth": 2,
          "verification": "traversal"} in found
  beams = [spec for spec in found if spec["name"] == "rsd_s"]
  assert {spec.get("verification") for spec in beams} == {None, "traversal"}
  for spec in found:
    branching = spec.get("branching", ())
    assert len(branching) <= 3
    assert sum(itertools.accumulate(branching, lambda a, b: a * b)) <= 5


def test_best_first_trees_can_be_made():
  found = [plan for plan in tree_planning.plans({"match": ACCEPT}, FREE,
                                                nodes=9, depth=3)
           if plan.spec["name"] == "opt_tree"]
  assert {plan.spec["nodes"] for plan in found} == set(range(1, 10))
  for plan in found:
    sizes = {**plan.spec}
    assert getattr(dj.methods, sizes.pop("name"))(**sizes)
  # The drafter grows a whole beam, of which the target scores the best nodes.
  costs = FREE._replace(draft=float)
  assert tree_planning.step_seconds(costs, (4, 4), 5) == 1 + 2 + 4


def test_the_smallest_tree_that_keeps_the_speed():
  plan = lambda name, size, rate: tree_planning.Plan(
      {"name": name, "nodes": size}, 2.0, 1.0, rate)
  plans = [plan("a", 30, 10.0), plan("a", 20, 9.9), plan("a", 10, 9.6),
           plan("b", 40, 9.5), plan("a", 5, 9.0), plan("b", 50, 8.0)]
  within = lambda budget: tree_planning.within_budget(
      plans, lambda plan: plan.spec["nodes"], budget)
  assert within(100) == [plans[2], plans[3]]
  # Of what fits, the best is the measure.
  assert within(30) == [plans[2]]
  assert within(9) == [plans[4]]
  assert not within(4)


def test_seconds_of_a_step():
  costs = tree_planning.Costs(target=lambda n: 100.0 * n,
                              draft=lambda n: 10.0 * n,
                              rest=lambda levels, nodes: levels + nodes / 10)
  assert tree_planning.step_seconds(costs, ()) == 100
  assert tree_planning.step_seconds(costs, (3, 2)) == pytest.approx(
      600 + 20 + 30 + 2.5)


def counts(chances, steps=1e8):
  """Steps that accept exactly 0, 1, ... drafts, for chances at each depth."""
  reached = steps * np.cumprod([1, *chances])
  return reached - np.append(reached[1:], 0)
