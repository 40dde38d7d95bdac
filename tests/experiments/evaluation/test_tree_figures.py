"""Figures of some of the prompts of a record."""

import pytest

import decoding_jax as dj
from experiments.evaluation import tree_figures
from support import tiny_records

CHAIN = tiny_records.records()[1]


def test_acceptance_has_an_interval_for_each_position():
  first, second = tree_figures.main(CHAIN, 0)["acceptance_by_depth"]
  # Of ten calls five accept a token, and two of these another one.
  assert first[0] == 0.5 and second[0] == 0.4
  assert first[1] < 0.5 < first[2] <= 1 and 0 == second[1] < 0.4 < second[2]


def test_a_position_that_was_never_reached_has_no_rate():
  record = tiny_records.record("speculative(2)", [1] * 3, drafts=2, nodes=2,
                               accepted=[(6, 0, 0)] * 3)
  result = tree_figures.main(record, 0)["acceptance_by_depth"]
  assert result == [[0, 0, 0], [None] * 3]


def test_speed_up_is_paired_by_prompt():
  result = tree_figures.main({
      **CHAIN, "seconds": [0.5, 5.0, 50.0], "plain_seconds": [1.0, 10.0, 100.0]
  }, 0)
  assert result["token_rate_ratio"] == [2, 2, 2]


def test_figures_of_a_category():
  part = tree_figures.of_prompts(CHAIN, [0, 2])
  result = tree_figures.main(part, tiny_records.RATIO)
  assert result["block_efficiency"][0] == pytest.approx(10 / 6, abs=1e-6)
  assert result["token_rate"][0] == pytest.approx(10 / 1.3, abs=1e-6)
  assert result["token_rate_ratio"][0] == pytest.approx(2 / 1.3, abs=1e-6)
  assert result["acceptance_by_depth"][0][0] == pytest.approx(2 / 6, abs=1e-6)
  one = tree_figures.main(tree_figures.of_prompts(CHAIN, [1]), 0)
  assert one["token_rate_ratio"] == [pytest.approx(1 / 0.6, abs=1e-6), None,
                                     None]


def test_categories_without_seconds():
  """Of prompts that shared a batch counts are known, and no rates."""
  shared = {name: x for name, x in CHAIN.items()
            if not name.startswith(("prompt_", "plain_"))}
  assert "token_rate_ratio" in tree_figures.main(shared, 0)
  result = tree_figures.main(tree_figures.of_prompts(shared, [0, 1]), 0)
  assert set(result) == {"block_efficiency", "mbsu", "acceptance_by_depth"}


def test_categories_of_a_baseline_that_was_timed_on_few_prompts():
  timed = {name: x for name, x in CHAIN.items()
           if not name.startswith("plain_")}
  result = tree_figures.main(tree_figures.of_prompts(timed, [0, 1]), 0)
  assert "token_rate" in result and "token_rate_ratio" not in result


def test_cells_of_each_category_and_of_all():
  items = [x for x in tiny_records.cells() if x["metric"] == "block_efficiency"]
  assert [(x["method"], x["category"], x["prompts"]) for x in items[:4]] == [
      ("autoregressive", "qa", 1), ("autoregressive", "rag", 2),
      ("autoregressive", "all", 3), ("speculative(2)", "qa", 1)]
  assert len(items) == 9
  chain = items[3:6]
  assert [x["value"] for x in chain] == [
      1.5, pytest.approx(10 / 6, abs=1e-6), 1.6]
  assert chain[2]["nodes"] == chain[2]["depth"] == 2


def test_names_without_options_where_these_tell_nothing_apart():
  names = ["suffix(8x4, paths=16, p=0.1)", "rsd_s(2x2, traversal)",
           "cdsl(3, a=1)", "cdsl(3, a=2)"]
  assert list(tree_figures.short_names(names).values()) == [
      "suffix(8x4)", "rsd_s(2x2, traversal)", "cdsl(3, a=1)", "cdsl(3, a=2)"]


@pytest.mark.parametrize("method, label", [
    (dj.methods.prompt_lookup(4), "prompt lookup"),
    (dj.methods.suffix(4, 2), "suffix decoding"),
    (dj.methods.token_recycling((2,), 2), "Token Recycling"),
    (dj.methods.speculative(3, verification="block"), "SD, traversal"),
    (dj.methods.sequoia(((2,), (0, 1), (1,))), "sequoia"),
    (dj.methods.rsd_s(3, 2, verification="traversal"), "RSD-S, traversal"),
    (dj.methods.rsd_s(3, 2), "RSD-S")], ids=lambda x: getattr(x, "name", ""))
def test_labels_have_no_sizes_but_how_trees_are_verified(method, label):
  assert tree_figures.label(method.name) == label


def test_records_that_name_a_rule_by_its_alias():
  assert tree_figures.label("speculative(3, block)") == "SD, traversal"
