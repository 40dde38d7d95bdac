"""Batches of prompts of many lengths, and a run of them."""

import itertools
import types

import jax
import numpy as np
import pytest

from configs import rsd as rsd_config
from experiments.app import method_specs
from experiments.data import prompt_tasks
from experiments.evaluation import (
    method_grid, tree_cells, tree_figures, tree_tables)
from experiments.harness import batches as batches_lib, cells
from experiments.scoring import text_metrics
from support import helpers, tiny_models as tiny
from support.tiny_tasks import jsonl, make_config


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_widths_have_the_least_padding(count):
  rng = np.random.default_rng(count)
  for _ in range(20):
    lengths = rng.integers(1, 12, size=8)
    sizes = np.unique(lengths)
    padded = lambda chosen: chosen[np.searchsorted(chosen, lengths)].sum()
    best = min(padded(np.array([*some, sizes[-1]]))
               for n in range(min(count, len(sizes)))
               for some in itertools.combinations(sizes[:-1], n))
    got = batches_lib.widths(lengths, count)
    assert len(got) <= count and got[-1] == sizes[-1]
    assert padded(got) == best


def test_members_are_all_rows():
  lengths = np.array([3, 9, 4, 9, 2, 30])
  got = {width: rows.tolist()
         for width, rows in batches_lib.by_width(lengths, 3)}
  assert got == {4: [0, 2, 4], 9: [1, 3], 30: [5]}


def test_ragged_batches():
  config = rsd_config.get_config()
  config.update(batch=2, buckets=2)
  rows = [[1] * n for n in (3, 9, 4, 8, 2)]
  batches, places = batches_lib.make(config, rows)
  assert [b[1].shape for b in batches] == [(2, 4), (2, 4), (2, 9)]
  # The last of a width is filled with its first rows.
  np.testing.assert_array_equal(batches[1][1][1], batches[0][1][0])
  shapes = batches_lib.one_of_each_shape(batches)
  assert [b[1].shape[1] for b in shapes] == [4, 9]
  results = [(key, row[:n]) for keys, prompts_, lengths in batches
             for key, row, n in zip(keys, prompts_, lengths)]
  key = jax.random.key(config.seed)
  for i, (row, place) in enumerate(zip(rows, places, strict=True)):
    assert results[place][1].tolist() == row
    np.testing.assert_array_equal(
        jax.random.key_data(results[place][0]),
        jax.random.key_data(jax.random.fold_in(key, i)))
  for _, prompts_, lengths in batches:
    assert all((row[n:] == 0).all() for row, n in zip(prompts_, lengths))


def test_texts_of_a_length_share_a_batch():
  config = make_config("text", "", batch=2, buckets=2)
  rows = [[1], [2], [3, 3], [4, 4], [5, 5], [6, 6]]
  batches, places = batches_lib.make(config, rows, [9, 9, 7, 2, 7, 3])
  assert [b[1][:, 0].tolist() for b in batches] == [[1, 2], [4, 6], [3, 5]]
  assert places.tolist() == [0, 1, 4, 2, 5, 3]
  assert batches_lib.max_rows(2, 1, False) == 1
  config.update(prompts=9, batch=8, queue=9)
  assert batches_lib.max_rows(8, 9, True) == 8 + 4
  config.update(batch=2, queue=0)
  # Keys go by the prompt, not by the place.
  plain, _ = batches_lib.make(config, rows)
  np.testing.assert_array_equal(jax.random.key_data(batches[1][0])[0],
                                jax.random.key_data(plain[1][0])[1])


def test_drafters_without_a_draft_model_and_decoders_have_cells_too(
    folders, tmp_path):
  pair = helpers.load_pair(*folders)
  config = make_config("text", "", batch=2, buckets=1, max_new_tokens=4,
                       temperatures=(0.5,))
  config.trees = {"length": {"2": (
      {"name": "token_recycling", "widths": (2, 2), "branching": 2},
      "suffix(3, 2)", "pearl(2)")}}
  config.update(methods=(), lengths=(2,), budgets=())
  methods, points = method_grid.from_config(config)
  examples = prompt_tasks.Examples([[1, 2, 3], [4, 5, 6]])
  result = tree_cells.measure(config, pair, methods, examples,
                              tmp_path / "results")
  assert [r["tree_nodes"] for r in result[:3]] == [0, 4, 3]
  for record in result[:3]:
    assert record["draft_calls"] == [0, 0]
    assert record["metrics"]["mbsu"] == record["metrics"]["block_efficiency"]
  pearl = result[3]
  assert pearl["depth"] == 2
  assert pearl["draft_calls"] == [2 * n for n in pearl["target_calls"]]
  runs = sum(pearl["target_calls"]) - pearl["post_verify_calls"]
  accepted = np.array(pearl["accepted_by_depth"]).sum(axis=0) @ [0, 1, 2]
  assert pearl["metrics"]["mean_accepted"] == [accepted / runs]
  rows = tree_figures.long_records(result, None, 0.1)
  text = tree_tables.terminal(rows, tree_tables.best(rows, points))
  for label in ("Token Recycling", "suffix decoding", "PEARL"):
    assert f"  {label} " in text


def test_a_run_of_ragged_prompts(folders, tmp_path):
  pair = helpers.load_pair(*folders)
  path = jsonl(tmp_path / "a.jsonl", *(
      {"de": "x" * n, "en": "y"} for n in (1, 2, 3, 12, 13)))
  config = make_config(
      "wmt18_de_en", path, batch=2, buckets=2, max_new_tokens=5,
      temperatures=(1.0,), target=folders[0], draft=folders[1])
  config.update(prompts=5, tasks={"wmt18_de_en": {"formats": {"pairs": {
      "template": "{german}", "shots": ()}}}})
  examples = prompt_tasks.load(config, pair)
  methods = [method_specs.read({"name": "autoregressive"}),
             method_specs.read({"name": "rsd_s", "width": 2, "depth": 1})]
  size = tiny.generate_lib._generate.num_programs
  before = size()
  result = tree_cells.measure(config, pair, methods, examples,
                              tmp_path / "results")
  assert size() - before <= len(methods) * config.buckets
  assert [record["method"] for record in result] == [m.name for m in methods]
  for record in result:
    assert len(record["texts"]) == len(record["emitted"]) == 5
    assert len(record["tokens"]) == 3
    assert len(record["row_steps"]) == 3
    assert 0 <= record["metrics"]["idle_share"][0] < 1
    assert all(1 <= n <= 5 for n in record["emitted"])
    assert record["metrics"]["bleu"] == text_metrics.corpus_bleu(
        [text.lstrip().split("\n")[0].strip() for text in record["texts"]],
        ["y"] * 5)
  # What has a result is not run again.
  again = tree_cells.measure(config, pair, methods, examples,
                             tmp_path / "results")
  assert again == result
  # From a queue come the same texts; the three short prompts have one.
  config.queue = 4
  queued, = tree_cells.measure(config, pair, methods[:1], examples,
                               tmp_path / "queued")
  assert queued["texts"] == result[0]["texts"]
  assert len(queued["tokens"]) == 2
  assert 0 <= queued["metrics"]["idle_share"][0] < 1
  # Without timings there are the same counts, and no rates.
  config.update(queue=0, references=0)
  counted = tree_cells.measure(config, pair, methods, examples,
                               tmp_path / "counted")
  for record, timed in zip(counted, result, strict=True):
    for name in ("texts", "emitted", "target_calls", "row_steps"):
      assert record[name] == timed[name]
    assert not {"seconds", "tokens", "baseline_rate"} & record.keys()
    assert "token_rate" not in record["metrics"]
  rows = tree_figures.long_records(counted, None, 0.1)
  trees = tree_tables.best(rows, {("length", 1): [methods[1].name]})
  tree_tables.write(tmp_path, rows, trees, "", {})
  assert "| tokens/s" not in (tmp_path / "summary.md").read_text()
  assert "RSD-S" in tree_tables.terminal(rows, trees)


def test_seconds_of_each_prompt_and_of_its_baseline():
  def out(*tokens):
    stats = types.SimpleNamespace(emitted=np.array(tokens))
    return types.SimpleNamespace(stats=stats, lengths=tokens)

  by_prompt = tree_cells._by_prompt
  rows = np.array([1, 0])
  references = [(out(8), 4.0), (out(5), 1.5)]
  timed = cells.Timed([out(8), out(6)], [2.0, 1.0], references)
  assert by_prompt(timed, rows) == {
      "prompt_seconds": [1.0, 2.0], "plain_seconds": [1.5, 4.0],
      "plain_tokens": [5, 8]}
  assert by_prompt(timed._replace(references=references[:1]), rows) == {
      "prompt_seconds": [1.0, 2.0]}
  # Prompts that share a batch have no seconds of their own.
  assert by_prompt(timed._replace(outputs=[out(8, 6), out(6, 6)]), rows) == {}


def test_a_draft_at_its_own_temperature(monkeypatch):
  given = []
  monkeypatch.setattr(tree_cells.mesh, "generate",
                      lambda *_, **kwargs: given.append(kwargs))
  config = rsd_config.get_config()
  for config.draft_temperature in (0.0, 0.7):
    tree_cells.decoder(config, None, None, None, 0.3)((None, None, None))
  assert [x["sampling"].temperature for x in given] == [0.3, 0.3]
  assert [x["draft_sampling"] and x["draft_sampling"].temperature
          for x in given] == [None, 0.7]
