"""The choice of a method: its parts, and once as a whole."""

import functools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from decoding_jax.types import Stats
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import model_pair
from experiments.timing import auto_method
from experiments.timing import forward_cost
from models import transformer
from models.heads import medusa
from support import tiny_models as tiny

PLAIN = tree_planning.Plan({"name": "autoregressive"}, 1.0, 0.01, 100.0)


def plan(rate, name="speculative"):
  return tree_planning.Plan({"name": name, "depth": 2}, 2.0, 2.0 / rate, rate)


def choice(rate):
  """Of autoregressive decoding and a chain, which promised more than it did."""
  finalists = [PLAIN, plan(250.0)]
  return auto_method._choice([PLAIN._replace(rate=98.0), plan(rate)],
                             finalists[::-1])


def test_the_fastest_is_chosen_and_told():
  found = choice(196.0)
  assert found.method.name == "speculative(2)"
  assert found.plan.rate == 196.0 and found.predicted == 250.0
  assert found.reason == (
      "speculative(2): 196.0 tokens/s in a trial, 250.0 were predicted; 2.00 "
      "times those of autoregressive decoding; 2.00 tokens a step, which takes "
      "1.02 times as long.")


@pytest.mark.parametrize("rate", [90.0, 99.0])
def test_where_speculation_cannot_pay_it_says_why(rate):
  found = choice(rate)
  assert found.method.name == "autoregressive"
  assert found.plan.rate == 98.0 and found.predicted == 100.0
  assert found.reason == (
      "autoregressive: 98.0 tokens/s in a trial, 100.0 were predicted; no tree "
      "is faster: speculative(2) emits 2.00 tokens a step, which takes "
      f"{2 / rate / 0.01:.2f} times as long.")


def test_the_best_names_and_ways_to_verify_are_tried_out():
  verified = lambda rate, name, way: plan(rate, name)._replace(
      spec={"name": name, "depth": 2, "verification": way})
  plans = [verified(9.0, "rsd_s", "traversal"), plan(8.5, "rsd_s"), PLAIN,
           verified(8.0, "rsd_c", "traversal"),
           verified(7.0, "rsd_c", "layer"), plan(6.0, "sequoia"),
           verified(5.0, "rsd_c", "shared_gumbel")]
  # Two names, then what is verified otherwise.
  assert auto_method._finalists(plans) == [PLAIN, plans[0], plans[3], plans[1],
                                           plans[4]]
  # So are children that are no samples.
  matched = plan(8.2, "opt_tree")
  assert auto_method._finalists([*plans[:4], matched]) == [
      PLAIN, plans[0], plans[3], plans[1], matched]
  assert auto_method._finalists(plans[1:3]) == [PLAIN, plans[1]]


def test_what_did_well_at_first_is_not_lost():
  """Its rate is told beside that of autoregressive decoding at the time."""
  stats = Stats(target_calls=np.array([10]), draft_calls=None,
                emitted=np.array([25]), nodes=None, accepted_by_depth=None,
                extra={})
  run = lambda rate: auto_method._Run(None, stats, 1 / rate, 0.0, rate)
  chain, tried = plan(250.0), plan(240.0, "rsd_s")
  specs = [PLAIN.spec, chain.spec, tried.spec, {"name": "rsd_c", "depth": 9}]
  [result] = auto_method._known(
      [chain, tried, PLAIN], [PLAIN._replace(rate=90.0), tried], specs,
      [run(100.0), run(200.0), run(150.0), run(500.0)])
  assert result == chain._replace(tokens=2.5, seconds=1 / 180, rate=180.0)


def test_where_no_tree_fits():
  found = auto_method._choice([PLAIN._replace(rate=98.0)], [PLAIN])
  assert found.method.name == "autoregressive" and found.plan.rate == 98.0
  assert found.reason == ("autoregressive: 98.0 tokens/s in a trial; no tree "
                          "fits into the budget of memory.")


def test_methods_without_a_draft_model():
  found = [method.name.split("(")[0] for method in auto_method.methods(False)]
  assert found == ["autoregressive", "token_recycling", "prompt_lookup",
                   "suffix"]
  drafting = auto_method.methods()
  assert len(drafting) == len(found) + 3
  assert sum(method.sampled.drafter.calls > 0 for method in drafting) == 3


_CURVE = forward_cost.Curve((1, 32), (10.0, 41.0), (10.0, 41.0), (10.0, 41.0))


def runs_of(seconds):
  """Returns runs of the four kinds, whose steps take `seconds(layout)`."""
  drafters = [method.sampled.drafter for method in (
      dj.methods.autoregressive(), dj.methods.speculative(3),
      dj.methods.rsd_c((4, 2)), dj.methods.rsd_s(4, 3))]
  return [auto_method._Run(x, None, seconds(x.layout), 0, 0) for x in drafters]


def test_what_is_beside_the_forwards_is_found_again():
  """From steps that take 5, 2 a level and 1 a node beside their forwards."""
  costs = tree_planning.Costs(_CURVE.at, _CURVE.at, lambda *_: 0.0)
  runs = runs_of(lambda layout: tree_planning.step_seconds(
      costs, layout.widths) + 5 + 2 * tree.depth(layout)
                 + tree.num_nodes(layout))
  rest = auto_method._rest(runs, _CURVE, _CURVE)
  assert rest(4, 10) == pytest.approx(5 + 8 + 10)


def test_a_choice_for_two_models(monkeypatch):
  """A draft that is the target: all that it drafts is accepted."""
  monkeypatch.setattr(auto_method, "_ROUNDS", 1)
  monkeypatch.setattr(auto_method, "_FINALISTS", 2)
  monkeypatch.setattr(forward_cost, "TOKENS", (1, 8))
  model = tiny.llama_models().target
  pair = model_pair.ModelPair(model.lm, model.params, model.lm, model.params,
                              None, 1.0)
  found = auto_method.choose(pair, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW,
                             dj.Sampling())
  rates = [x.rate for x in found.plans]
  assert rates == sorted(rates, reverse=True) and np.isfinite(rates).all()
  deepest = max((x for x in found.plans if x.spec["name"] == "speculative"),
                key=lambda x: x.tokens)
  assert deepest.spec["depth"] == 8 and deepest.tokens > 6
  assert found.reason.startswith(found.method.name)
  assert found.plan.rate > 0 and found.predicted in rates
  assert {x.spec["name"] for x in found.plans} == {
      "autoregressive", "speculative", "copy_or_draft", "rsd_c", "rsd_s",
      "sequoia", "opt_tree", "shared_budget", "token_recycling",
      "prompt_lookup", "suffix"}
  assert {x.spec.get("verification") for x in found.plans} == {
      None, "traversal", "layer", "conditional_ot"}


@pytest.mark.cases(1)
@pytest.mark.parametrize("temperature, ways", [
    (1.0, {None, "traversal"}), (0.0, {None})])
def test_a_choice_for_a_head(monkeypatch, temperature, ways):
  """No tree is deeper than it drafts, and none of its forwards is timed."""
  monkeypatch.setattr(auto_method, "_ROUNDS", 1)
  monkeypatch.setattr(auto_method, "_FINALISTS", 2)
  monkeypatch.setattr(forward_cost, "TOKENS", (1, 8))
  config, params = tiny.LLAMA, tiny.random_model(tiny.LLAMA).params
  head = medusa.Config(2)
  pair = model_pair.ModelPair(
      transformer.with_features(config, (config.num_layers - 1,)), params,
      medusa.head(head, config), medusa.init(jax.random.key(0), head, config),
      None, 0.1)
  assert len(auto_method._timed(pair)) == 1
  found = auto_method.choose(pair, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW,
                             dj.Sampling(temperature))
  drafting = [x for x in found.plans if x.spec["name"] in (
      "speculative", "rsd_c", "rsd_s", "sequoia", "opt_tree")]
  assert max(tree.depth(method_specs.read(x.spec).sampled.drafter.layout)
             for x in drafting) == 2
  assert {x.spec.get("verification") for x in drafting} == ways
  assert ("opt_tree" in {x.spec["name"] for x in drafting}) == (not temperature)
  assert found.reason.startswith(found.method.name) and found.plan.rate > 0
  assert np.isfinite([x.rate for x in found.plans]).all()


def test_forwards_of_a_head_are_found_again():
  """From steps that take 5 and 3 a forward, of which a draft takes one."""
  runs = runs_of(lambda layout: _CURVE.at(1 + tree.num_nodes(layout)) + 5
                 + 3 * (tree.num_nodes(layout) > 0))
  rest = auto_method._rest(runs, _CURVE, forwards=lambda depth: 1)
  np.testing.assert_allclose([rest(0, 0), rest(2, 4), rest(3, 9)], [5, 8, 8])


@pytest.mark.long
def test_a_choice_without_a_draft_model(monkeypatch):
  """And with a budget of memory that all fit into, and one that none does."""
  monkeypatch.setattr(auto_method, "_ROUNDS", 1)
  monkeypatch.setattr(forward_cost, "TOKENS", (1, 8))
  model = tiny.llama_models().target
  pair = model_pair.ModelPair(model.lm, model.params, None, None, None, 0.0)
  choose = functools.partial(
      auto_method.choose, pair, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW,
      dj.Sampling())
  found = choose(memory_budget=2**40)
  assert {x.spec["name"] for x in found.plans} == {
      "autoregressive", "token_recycling", "prompt_lookup", "suffix"}
  with pytest.raises(launch.UserError, match="autoregressive needs"):
    choose(memory_budget=10)


def test_meshes_are_refused():
  model = tiny.llama_models().target
  pair = model_pair.ModelPair(model.lm,
                              model.params,
                              model.lm,
                              model.params,
                              None,
                              1.0,
                              mesh="some")
  with pytest.raises(launch.UserError, match="auto and --mesh"):
    auto_method.choose(pair, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW,
                       dj.Sampling())


def test_copies_are_no_deeper_than_a_head(monkeypatch):
  monkeypatch.setattr(auto_method.text_estimates, "copied_steps",
                      lambda *_: (2.0, 0.5))
  costs = tree_planning.Costs(*[lambda *_: 1.0] * 3)
  copies = lambda most: [x.spec["copies"] for x in auto_method._with_copies(
      [plan(200.0)], ["text"], costs, most)]
  assert (copies(0), copies(5), copies(2)) == ([8], [5], [2])
