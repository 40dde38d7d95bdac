"""Tests of `experiments.benchmark`: turns, resuming, tables, errors."""

import dataclasses
import json
import types

import jax
import ml_collections
import numpy as np
import pytest

import decoding_jax as dj
from configs import benchmark as benchmark_config
from experiments.app import launch
from experiments.benchmarking import (
    entries, measurement, systems, tables as benchmark_tables)
from experiments.harness import cells
from models import checkpoints
from models.heads import hydra
from models.huggingface import heads
from support import helpers, tiny_models as tiny

_CONFIG = '''
from configs import benchmark
def get_config():
  config = benchmark.get_config("smoke")
  config.update(rounds=2, prompts=2, prompt_length=3, max_new_tokens=5,
                methods=({{"name": "autoregressive"}},
                         {{"name": "speculative", "depth": 1}}),
                pairs={pairs!r}, batches=(2,), seed={seed})
  config.rivals = {{name: ({{"name": "plain"}},) for name in {rivals}}}
  return config
'''
_OURS = entries.Entry(entries.OURS, "autoregressive", "float32", 1, 1.0)
_PLAIN = entries.Entry("transformers", "plain", "float32", 1, 1.0)
_HALF = _PLAIN._replace(dtype="bfloat16")


def _record(entry, number, seconds, steps=10, emitted=20, **more):
  return {**entry._asdict(), "round": number, "seconds": seconds,
          "emitted": emitted, "steps": steps, "row_calls": steps and
          steps * entry.batch, "peak_bytes": 2_000_000, **more}


def test_entries_take_turns():
  config = benchmark_config.get_config()
  config.update(batches=(1, 2), temperatures=(1.0,), rival_dtypes=("float32",))
  first, second = entries.groups(config, ["a", "b", "c"], ["transformers"])
  assert [x.tool for x in first[:6]] == [
      entries.OURS, "transformers"] * 3
  assert [x.name for x in first if x.tool == entries.OURS] == [
      "a", "b", "c"]
  assert [x.name for x in first if x.tool != entries.OURS] == [
      "plain", "compiled", "assisted(2)", "assisted(3)", "assisted(4)",
      "assisted(5)", "lookup(3, ngram=2)"]
  # transformers speculates on one row only.
  assert [x.name for x in second if x.tool != entries.OURS] == [
      "plain", "compiled"]
  assert {x.batch for x in second} == {2}
  assert entries.groups(config, ["a"], [])[0] == [
      entries.Entry(entries.OURS, "a", "float32", 1, 1.0)]


@pytest.fixture(name="measure")
def _measure(tmp_path, monkeypatch):
  """Measures two rounds of a group."""
  monkeypatch.setattr(measurement, "_PAUSE_SECONDS", 0)
  return lambda group, run: cells.run(
      measurement.cells_of([group], 2, run), tmp_path / "results.jsonl")


def test_rounds_alternate_and_are_resumed(measure):
  calls, group = [], [_OURS, _PLAIN]

  def run(entry, number):
    calls.append((entry.tool, number))
    if len(calls) == 5:
      raise KeyboardInterrupt
    return {"seconds": len(calls)}

  with pytest.raises(KeyboardInterrupt):
    measure(group, run)
  ours, theirs = entries.OURS, "transformers"
  assert calls == [(ours, 0), (theirs, 0), (ours, 1), (theirs, 1), (ours, 2)]

  calls.clear()
  records = measure(group, run)
  # Compiled again, of which nothing is reported.
  assert calls == [(ours, 0), (ours, 2), (theirs, 0), (theirs, 2)]
  assert [(r["tool"], r["round"]) for r in records] == [
      (tool, number) for number in range(3) for tool in (ours, theirs)]
  assert records[0]["seconds"] == 1
  calls.clear()
  assert measure(group, run) == records and not calls


def test_what_fails_is_tried_again_by_the_next_start(measure):
  calls, broken = [], [True]

  def run(entry, number):
    calls.append((entry.tool, number))
    if entry == _PLAIN and broken[0]:
      return {"error": "no compiler"}
    return {"seconds": 1, "emitted": 3, "steps": 3, "row_calls": 3,
            "peak_bytes": None}

  def start():
    calls.clear()
    return measure([_OURS, _PLAIN], run)

  records = start()
  ours, theirs = entries.OURS, "transformers"
  assert calls == [(ours, 0), (theirs, 0), (ours, 1), (ours, 2)]
  assert [r for r in records if "error" in r] == [
      {**_PLAIN._asdict(), "round": 0, "error": "no compiler"}]
  assert benchmark_tables.rows(records)[1]["error"] == "no compiler"
  start()
  assert calls == [(theirs, 0)]
  broken[0] = False
  records = start()
  assert calls == [(theirs, 0), (theirs, 1), (theirs, 2)]
  assert benchmark_tables.rows(records)[1]["error"] is None


def _rows():
  chain = _OURS._replace(name="speculative(3)")
  broken = _PLAIN._replace(name="compiled")
  other = _PLAIN._replace(batch=4)
  return benchmark_tables.rows([
      _record(_OURS, 0, 9.0), _record(chain, 0, 8.0), _record(_PLAIN, 0, 7.0),
      _record(_HALF, 0, 6.0), _record(other, 0, 6.0),
      {**broken._asdict(), "round": 0, "error": "no compiler"},
      # Of three rounds the median counts.
      *(_record(_OURS, n, s) for n, s in ((1, 2.0), (2, 1.0), (3, 4.0))),
      *(_record(chain, n, 0.5, steps) for n, steps in ((1, 8), (2, 10))),
      _record(_PLAIN, 1, 4.0), _record(_HALF, 1, 2.5, None),
      _record(other, 1, 0.1)])


def test_rows_of_the_table():
  ours, chain, plain, half, other, broken = _rows()
  assert ours["rate"] == [10.0, 5.0, 20.0]
  assert ours["first_seconds"] == 9.0
  assert ours["block_efficiency"] == 2.0
  assert ours["peak_mb"] == 2
  # Theirs: 5 in float32, 8 in bfloat16; those of batch 4 do not count.
  assert (ours["same"], ours["any"], ours["plain"]) == (2.0, 10 / 8, 1.0)
  assert chain["steps"] == [9, 8, 10]
  assert chain["block_efficiency"] == pytest.approx(40 / 18)
  assert chain["any"] == 5.0
  assert (plain["same"], plain["any"]) == (1.0, 5 / 8)
  assert half["steps"] is half["block_efficiency"] is None
  assert (half["same"], half["any"]) == (1.0, 1.0)
  assert other["any"] == 1.0
  assert other["block_efficiency"] == 20 / 40
  assert broken["rate"] is broken["any"] is None
  assert broken["error"] == "no compiler"


def test_tables_and_files(tmp_path):
  rows = _rows()
  text = benchmark_tables.terminal(rows, ["vllm was left out."])
  tables = text.split("\n\n")
  assert [x.splitlines()[0].partition(";")[0] for x in tables] == [
      "Batch 1, temperature 1, 32 bits", "Batch 1, temperature 1, 16 bits",
      "Batch 4, temperature 1, 32 bits", "vllm was left out.",
      "Batch 1, temperature 1, 32 bits: decoding_jax speculative(3) is the "
      "fastest, at 4.00 times the rate of our plain decoding."]
  lines = tables[0].splitlines()
  assert lines[3].split() == [
      entries.OURS, "speculative(3)", "float32", "40.0", "8.00", "5.00",
      "4.00", "2.22", "9", "[8,", "10]", "8.0", "2"]
  # The fastest first, those without figures last.
  assert [line.split()[1] for line in lines[3:]] == [
      "speculative(3)", "autoregressive", "plain", "compiled"]
  assert "Batch 1, temperature 1: no compiler" in tables[3]
  benchmark_tables.write(tmp_path, rows)
  summary = (tmp_path / "summary.md").read_text()
  assert "10.0 [5.0, 20.0] | 2.00 | 1.25 |" in summary
  assert (tmp_path / "tokens_per_second.png").stat().st_size
  # Of us alone.
  rows = benchmark_tables.rows([_record(_OURS, 0, 1.0), _record(_OURS, 1, 2.0)])
  assert rows[0]["same"] is rows[0]["any"] is None
  benchmark_tables.write(tmp_path, rows, ["nobody else"])


def test_a_setting_that_is_not_exact_is_told_apart():
  openvino = [entries.Entry("openvino", name, "float32", 1, t)
              for t in (1.0, 0.0) for name in ("plain", "assisted(2)")]
  rows = benchmark_tables.rows([
      _record(entry, 1, seconds) for entry, seconds in zip(
          (_OURS, *openvino), (1.0, 4.0, 2.0, 4.0, 2.0))])
  ours, plain, assisted, greedy, greedy_assisted = rows
  assert (ours["same"], plain["same"], assisted["same"]) == (4.0, 1.0, 2.0)
  assert (greedy["same"], greedy_assisted["same"]) == (0.5, 1.0)
  assert [benchmark_tables.name(x["entry"])[-1] for x in rows[1:]] == [
      "n", "*", "n", ")"]


def test_presets():
  for preset in benchmark_config._PRESETS:
    config = benchmark_config.get_config(preset)
    entries.check(config)
    names = list(entries.methods_of(config.methods))
    assert names[0] == "autoregressive" and len(names) == len(config.methods)
    for group in entries.groups(config, names, config.rivals):
      assert len(set(group)) == len(group)
  with pytest.raises(ValueError, match="'huge' is not one of default, full"):
    benchmark_config.get_config("huge")


@pytest.mark.parametrize("update, message", [
    ({"rounds": 0}, "rounds=0: at least 1"),
    ({"batches": ()}, r"batches=\(\): at least 1"),
    ({"batches": (0,)}, r"batches=\(0,\): at least 1"),
    ({"dtypes": ("int7",)}, "dtypes='int7' is not one of float32, bfloat16"),
    ({"rival_dtypes": ("int7",)}, "rival_dtypes='int7' is not one of .*int4"),
    ({"rivals": {"ollama": ()}}, "rivals='ollama' is not one of transformers"),
    ({"draft_dtype": "int7"}, "draft_dtype='int7' is not one"),
    ({"draft_weights": "int7"}, "draft_weights='int7' is not one"),
    ({"vllm_memory_share": 1.5}, "vllm_memory_share=1.5: above 0 and at most"),
    ({"methods": ({"name": "beam_search", "num_beams": 2},)},
     "beam_search.* no draft tree")])
def test_configs_that_cannot_be(update, message):
  config = benchmark_config.get_config()
  config.update(update)
  with pytest.raises(launch.UserError, match=message):
    entries.check(config)
    entries.methods_of(config.methods)


def _config(**update):
  return ml_collections.ConfigDict({
      **benchmark_config.get_config().to_dict(), "prompts": 3,
      "prompt_length": 4, **update})


def test_models_that_do_not_fit(folders, tmp_path):
  other = str(tmp_path / "other")
  checkpoints.save(other, tiny.LLAMA, tiny.init(jax.random.key(0), tiny.LLAMA))
  for draft, message in (("", "both are needed"),
                         ("nothing", "'nothing' is neither a folder"),
                         (other, "has 270 tokens, .* 13, and without")):
    with pytest.raises(launch.UserError, match=message):
      systems.open_pair(_config(target=folders[0], draft=draft), tmp_path)


def test_a_pair_of_ours_is_exported(folders, tmp_path):
  config = _config(target=folders[0], draft=folders[1], text="python")
  pair = systems.open_pair(config, tmp_path)
  assert pair.target == tmp_path / "target" and pair.dtype == "float32"
  assert systems.open_pair(config, tmp_path).draft == tmp_path / "draft"
  ours, theirs = (checkpoints.load(x)[1] for x in (folders[0], pair.target))
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), ours, theirs)
  assert systems.prompts(config, pair).shape == (3, 4)
  with pytest.raises(launch.UserError, match="text='poems' is not one of sam"):
    entries.check(_config(text="poems"))
  with pytest.raises(launch.UserError, match="needs a tokenizer"):
    systems.prompts(config, pair._replace(tokenizer=None))


def test_drafts_may_have_a_type_of_their_own(folders, tmp_path):
  config = _config(target=folders[0], draft=folders[1], draft_weights="dtype")
  for draft_dtype, expected in (("", "float32"), ("bfloat16", "bfloat16")):
    config.draft_dtype = draft_dtype
    models = systems.with_dtype(
        systems.open_pair(config, tmp_path), "float32")
    for params, dtype in ((models.target_params, "float32"),
                          (models.draft_params, expected)):
      assert {str(x.dtype) for x in jax.tree.leaves(params)} == {dtype}


@pytest.mark.long
def test_a_head_drafts_for_our_methods(folders, tmp_path):
  target = checkpoints.load_config(folders[0])
  sizes = hydra.Config(2)
  heads.save(tmp_path / "head", hydra, sizes, hydra.init(
      jax.random.key(1), sizes, target), (target.num_layers - 1,))
  config = _config(target=folders[0], draft=folders[1], text="python",
                   head=str(tmp_path / "head"), draft_weights="dtype",
                   max_new_tokens=6)
  pair = systems.open_pair(config, tmp_path)
  texts = systems.prompts(config, pair)
  entry = _OURS._replace(name="speculative(1)")
  methods = {entry.name: dj.methods.speculative(1)}
  run = lambda pair: systems.ours(config, pair, methods, texts, entry, 0)
  headed, drafted = run(pair), run(pair._replace(head=""))
  assert headed["emitted"] == drafted["emitted"] == config.max_new_tokens
  assert isinstance(systems.with_dtype(pair, "float32").draft, dj.Head)
  config.head = folders[1]
  with pytest.raises(launch.UserError, match="config.head='.*' is no head on"):
    systems.open_pair(config, tmp_path)


def test_what_is_stored_in_bfloat16_is_read_so(folders, tmp_path):
  """By ours, in float32, with the numbers that others read."""
  narrow = str(tmp_path / "narrow")
  stored = dataclasses.replace(checkpoints.architecture(folders[0]),
                               dtype="bfloat16")
  checkpoints.to_hf(narrow, stored, checkpoints.load(folders[0])[1])
  config = _config(target=narrow, draft=folders[1], draft_dtype="bfloat16",
                   draft_weights="int8")
  pair = systems.open_pair(config, tmp_path)
  result = systems.with_dtype(pair, "float32")
  assert {str(x.dtype) for x in jax.tree.leaves(result.target_params)} == {
      "bfloat16", "float32"}
  _, whole = checkpoints.load(narrow, dtype="float32")
  jax.tree.map(np.testing.assert_array_equal, jax.tree.map(
      lambda x: x.astype("float32"), result.target_params), whole)
  assert "int8" in {str(x.dtype) for x in jax.tree.leaves(result.draft_params)}
  assert systems.remarks(pair, result) == [
      "A pair of 0.0025 M and 0.0025 M parameters.",
      "All drafts, ours and theirs, compute in bfloat16.",
      "Matrices of our drafts are in int8.",
      "The target is stored in bfloat16. In float32 ours reads its matrices as "
      "stored, which are the same numbers."]
  # Where all of it is float32, so are the weights.
  config.target, config.draft_weights = folders[0], "dtype"
  assert systems.open_pair(config, tmp_path).weights("float32") == (
      "dtype", "dtype")


def test_prompts_are_sampled_once(folders, tmp_path, monkeypatch):
  config = _config(target=folders[0], draft=folders[1])
  pair, made = systems.open_pair(config, tmp_path), []

  def generate(*_, **kwargs):
    made.append(kwargs["max_new_tokens"])
    return types.SimpleNamespace(tokens=np.zeros((3, 4), np.int32))

  monkeypatch.setattr(dj, "generate", generate)
  assert systems.prompts(config, pair) is systems.prompts(config, pair)
  assert made == [3]
  config.seed = 1
  systems.prompts(config, pair)
  assert made == [3, 3]


def _start(tmp_path, seed=0, rivals=("nobody",)):
  """Runs the program, with an engine that is missing and one that fails."""
  path = tmp_path / "config.py"
  path.write_text(_CONFIG.format(pairs=str(tmp_path / "pairs"), seed=seed,
                                 rivals=rivals))
  script = ("from experiments.rivals import engines as it; "
            "it.ENGINES['nobody'] = it.Engine('nobody', ('no_such_package',), "
            "hint='it cannot be had'); "
            "it.ENGINES['broken'] = it.Engine('support.no_server', ()); "
            "import runpy; "
            "runpy.run_module('experiments.benchmark', run_name='__main__')")
  process = helpers.start("-c", script, f"--config={path}",
                          f"--workdir={tmp_path / 'run'}")
  output, errors = process.communicate()
  return process.returncode, output, errors


@pytest.mark.long
def test_the_whole_command(tmp_path):
  status, output, errors = _start(tmp_path)
  assert status == 0, errors
  assert ("nobody was left out: no_such_package is not installed (it cannot be "
          "had)." in output)
  path = tmp_path / "run" / "results.jsonl"
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert [(r["name"], r["batch"], r["round"]) for r in records] == [
      (name, 2, number) for number in range(3)
      for name in ("autoregressive", "speculative(1)")]
  for record in records:
    assert record["emitted"] == 5 * record["batch"]
    assert record["row_calls"] <= record["batch"] * record["steps"]
  [pair] = (tmp_path / "pairs").iterdir()
  assert abs(json.loads((pair / "metadata.json").read_text())["overlap"] -
             0.7) <= 0.01
  tables = output[output.index("Batch 2"):]

  # Nothing is left to do: the same table once more.
  status, output, errors = _start(tmp_path)
  assert status == 0, errors
  assert output[output.index("Batch 2"):] == tables
  assert len(path.read_text().splitlines()) == len(records)

  # Another tool fails, and the run goes on.
  status, output, errors = _start(tmp_path, rivals=("nobody", "broken"))
  assert status == 0, errors
  *kept, failed = map(json.loads, path.read_text().splitlines())
  assert kept == records
  assert failed["tool"] == "broken" and "No module named" in failed["error"]
  assert "broken plain in float32, Batch 2, temperature 1: its pro" in output

  status, _, errors = _start(tmp_path, seed=1)
  assert status == 2
  assert "seed=0, not of 1" in errors and len(errors.splitlines()) == 1
