"""Tests of `experiments.rsd` and `experiments.generate` on a tiny pair."""

import contextlib
import json
import signal
import time

import jax
import numpy as np
import pytest

import decoding_jax as dj
from configs import rsd as rsd_config, rsd_qwen_coder, rsd_tables
from decoding_jax.speculation import tree
from experiments.app import launch
from experiments.data import prompt_tasks, python_corpus
from experiments.devices import mesh as mesh_lib, mesh_shapes, model_pair
from experiments.evaluation import method_grid, tree_figures
from models import prompt_lookup
from support import helpers

_CONFIG = '''
from configs import rsd
def get_config():
  config = rsd.get_config("smoke")
  config.update(target={target!r}, draft={draft!r}, prompts=3, batch=2,
                prompt_length=4, max_new_tokens=6, lengths=(1,), budgets=(),
                methods=("speculative", "rsd_s"), compilation_cache=True)
  config.trees.length = {{"1": ({{"name": "speculative", "depth": 1}},
                                {{"name": "rsd_s", "width": 2, "depth": 1}})}}
  return config
'''


def test_a_killed_run_resumes_and_repeats_nothing(python, folders, tmp_path):
  config, workdir = tmp_path / "config.py", tmp_path / "run"
  config.write_text(_CONFIG.format(target=folders[0], draft=folders[1]))
  arguments = f"--config={config}", f"--workdir={workdir}"
  path = workdir / "results.jsonl"
  process = helpers.start("-m", "experiments.rsd", *arguments)
  while process.poll() is None and not (
      path.exists() and path.read_text().count("\n") >= 2):
    time.sleep(0.05)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  first = path.read_text()
  first = first[:first.rfind("\n") + 1]
  with open(path, "a") as f:
    f.write('{"method": "torn')

  got = python("-m", "experiments.rsd", *arguments, f"--profile={workdir}")
  assert got.status == 0, got.errors
  assert path.read_text().startswith(first)
  assert (workdir / "autoregressive/profile.md").exists()
  assert "\nverify " in (workdir / "rsd_s(2x1)/profile.md").read_text()
  records = [json.loads(line) for line in path.read_text().splitlines()]
  # Nothing was compiled twice.
  assert len(list((workdir / "compiled").glob("jit__generate-*"))) == 3
  assert [r["method"] for r in records] == [
      "autoregressive", "speculative(1)", "rsd_s(2x1)"]
  for record in records:
    assert record["emitted"] == [6, 6, 6]
    assert len(record["seconds"]) == 2
  assert "Fixed draft length, temperature 0.6" in got.output
  assert "plain tokens/s" in got.output
  for name in ("summary.md", "summary.csv", "summary.tex", "run.json",
               *(f"{figure}.{kind}" for kind in ("png", "pdf") for figure in (
                   "block_efficiency", "mbsu", "token_rate_ratio"))):
    assert (workdir / name).stat().st_size

  lines = (workdir / "summary.md").read_text().splitlines()
  assert lines[2].startswith(f"- Models: target={folders[0]}, draft=")
  assert "dtypes=float32/float32" in lines[2]
  assert lines[3].startswith("- Device: 1 x cpu; ")
  assert "batch=2" in lines[5] and "prompts=3" in lines[5]

  # Other settings may not be mixed in, and what is there stays.
  got = python("-m", "experiments.rsd", *arguments, "--config.seed=1")
  assert (got.status, len(got.errors.splitlines())) == (2, 2)
  assert got.errors.startswith("a device needs ")  # What any start says.
  assert "seed=0, not of 1" in got.errors.splitlines()[1]
  assert len(path.read_text().splitlines()) == 3

  # Runs are compared without their models, and none is written over.
  join = "-m", "experiments.rsd", f"--join={workdir}", "--workdir"
  got = python(*join, tmp_path / "joined")
  assert got.status == 0, got.errors
  summary = (tmp_path / "joined/summary.md").read_text()
  assert f"- {workdir}, python:\n  - draft length 1, temp" in summary
  assert (tmp_path / "joined/block_efficiency.png").stat().st_size
  got = python(*join, workdir)
  assert (got.status, "has a run of its own" in got.errors) == (2, True)
  got = python("-m", "experiments.rsd", f"--join={tmp_path}")
  assert (got.status, "no results of" in got.errors) == (2, True)


@pytest.mark.long
def test_several_drafters_are_compared(python, folders, tmp_path):
  config, workdir = tmp_path / "config.py", tmp_path / "run"
  config.write_text(_CONFIG.format(target=folders[0], draft="").replace(
      "  return config", f"""
  config.trees.length["1"] += ({{"name": "opt_tree", "nodes": 2, "width": 2,
                                "depth": 1}},)
  config.trees.budget = {{"2": config.trees.length["1"]}}
  config.update(lengths=(), budgets=(2,), methods=())
  config.drafts = {{"small": {folders[1]!r}, "first": "lookup", "no": ""}}
  return config"""))
  arguments = f"--config={config}", f"--workdir={workdir}"
  got = python("-m", "experiments.rsd", *arguments,
               "--config.drafts.small=missing")
  assert (got.status, len(got.errors.splitlines())) == (2, 1)
  assert "'missing'" in got.errors and not workdir.exists()

  got = python("-m", "experiments.rsd", *arguments)
  assert got.status == 0, got.errors
  assert "Fixed target budget: block efficiency" in got.output
  for name in ("summary.md", "run.json", "mbsu.png", "mbsu.pdf",
               "small/summary.md", "first/results.jsonl"):
    assert (workdir / name).stat().st_size
  # Both drafters share the compiled programs of plain decoding.
  assert not list(workdir.glob("*/compiled"))
  summary = (workdir / "summary.md").read_text()
  assert "| first | 0.6 | OPT-Tree |" in summary
  assert f"draft=lookup and {folders[1]}." in summary


def _generate(python, folders, tmp_path, *arguments):
  return python("-m", "experiments.generate", f"--target={folders[0]}",
                "--prompt=import os", "--max_new_tokens=6",
                f"--compilation_cache={tmp_path}", *arguments)


@pytest.mark.parametrize("arguments, name", [
    (["--draft={}", "--method=sequoia(((2,), (1, 0)))"], "sequoia(2/1,0)"),
    (["--method=prompt_lookup(8)", "--stream"], "prompt_lookup(1x8, 3)"),
    pytest.param(["--method=token_recycling"],
                 "token_recycling(8-21-25-15-8-3, 8)", marks=pytest.mark.long),
    pytest.param(["--method=autoregressive"], "autoregressive",
                 marks=pytest.mark.long)])
def test_generate(python, folders, tmp_path, arguments, name):
  """With a drafter, and by what drafts without a model or not at all."""
  got = _generate(python, folders, tmp_path, *(
      x.format(folders[1]) if "{}" in x else x for x in arguments))
  assert got.status == 0, got.errors
  assert got.output.startswith("import os") and "NaN" not in got.output
  assert "\nCompiling, or loading programs " in got.errors
  last = got.output.splitlines()[-1]
  assert last.startswith(f"{name}: 6 tokens, ")
  compiled = "with compilation" if "--stream" in arguments else "compiled in"
  for part in ("target call", "block efficiency", "tokens/s", compiled,
               " on cpu, mean log-probability -"):
    assert part in last
  # A stream is decoded by programs of steps.
  assert "--stream" in arguments or list(tmp_path.glob("jit__generate-*"))


@pytest.mark.long
def test_what_generate_refuses_without_a_drafter(python, folders, tmp_path):
  for more, message in (
      ([], "--method=rsd_s drafts, and no drafter comes with --target="),
      (["--method=stochastic_beam_search", "--temperature=0"], "temperature")):
    got = _generate(python, folders, tmp_path, *more)
    assert (got.status, len(got.errors.splitlines())) == (2, 1)
    assert message in got.errors


@pytest.mark.parametrize("method, budget, temperature, message", [
    (dj.methods.rsd_s(300, 2), 6, 1.0, "300 siblings: the vocabulary has 270"),
    (dj.methods.rsd_s(3, 2), 0, 1.0, "max_new_tokens=0"),
    (dj.methods.rsd_s(3, 2), 100, 1.0, "max_length=32"),
    (dj.methods.autoregressive(), 6, -1.0, "temperature"),
    (dj.methods.autoregressive(), 6, "warm", "temperature")])
def test_what_generate_would_refuse_is_a_user_error(folders, method, budget,
                                                    temperature, message):
  with pytest.raises(launch.UserError, match=message):
    model_pair.check(method, helpers.load_pair(*folders), 4, budget,
                     dj.Sampling(temperature))


def test_looked_up_drafts_need_no_folder(folders):
  pair = helpers.load_pair(folders[0], "lookup")
  assert pair.draft is prompt_lookup.language_model(pair.target.vocab_size)
  assert pair.draft_params == () and pair.parameter_ratio == 0
  model_pair.check(dj.methods.rsd_s(3, 2), pair, 4, 6, dj.Sampling())
  pair = model_pair.open_pair(folders[0], "")
  with pytest.raises(launch.UserError, match="draft=None: method rsd_s"):
    model_pair.check(dj.methods.rsd_s(3, 2), pair, 4, 6, dj.Sampling())


def loaded(shapes):
  """The pair as shapes, and its parameters on a device and on a mesh."""
  return (shapes, model_pair.with_params(shapes),
          mesh_lib.with_params(shapes, mesh_shapes.make((1, 1))))


@pytest.mark.parametrize("dtype,draft_dtype,expected", [
    ("", "", ("float32", "float32")), ("bfloat16", "", ("bfloat16",) * 2),
    ("", "bfloat16", ("float32", "bfloat16")),
    ("bfloat16", "float16", ("bfloat16", "float16"))])
def test_types_of_both_models(folders, dtype, draft_dtype, expected):
  for pair in loaded(model_pair.open_pair(*folders, dtype, draft_dtype)):
    for lm, params, kind in zip((pair.target, pair.draft), (
        pair.target_params, pair.draft_params), expected):
      assert {str(x.dtype) for x in jax.tree.leaves(params)} == {kind}
      # Caches are of the model's type, not of the parameters'.
      with pair.mesh or contextlib.nullcontext():
        assert lm.init_cache(1, 8).keys[0].dtype == kind


@pytest.mark.parametrize("weights,draft_weights,expected", [
    ("dtype", "", (False, False)), ("int8", "", (True, True)),
    ("dtype", "int8", (False, True)), ("int8", "dtype", (True, False))])
def test_weights_of_both_models(folders, weights, draft_weights, expected):
  """Wherever they are, they are of the shapes that memory is estimated by."""
  shapes = model_pair.open_pair(*folders, weights=weights,
                                draft_weights=draft_weights)
  both = lambda pair: (pair.target_params, pair.draft_params)
  described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  for pair in loaded(shapes):
    assert described(both(pair)) == described(both(shapes))
    assert expected == tuple(
        any(x.dtype == np.int8 for x in jax.tree.leaves(params))
        for params in both(pair))
  assert shapes.parameter_ratio == model_pair.open_pair(
      *folders).parameter_ratio
  assert (model_pair.fingerprint(loaded(shapes)[1]) ==
          model_pair.fingerprint(helpers.load_pair(*folders))) != any(expected)


def test_types_that_are_none(folders):
  weights = "dtype, bfloat16, int8"
  for field, others in (("dtype", "float32, bfl"), ("weights", weights),
                        ("draft_dtype", "float32, bfl"),
                        ("draft_weights", weights)):
    with pytest.raises(launch.UserError,
                       match=f"^{field}='int7' is not one of {others}"):
      model_pair.open_pair(*folders, **{field: "int7"})
  with pytest.raises(launch.UserError, match="draft_weights='int8': draft="
                     "'lookup' has no weights"):
    model_pair.open_pair(folders[0], "lookup", draft_weights="int8")
  model_pair.open_pair(folders[0], "lookup", weights="int8")
  for target in ("", "lookup"):
    with pytest.raises(launch.UserError, match=f"'{target}' is neither a"):
      model_pair.open_pair(target, "lookup")


def test_too_few_held_out_prompts_are_a_user_error(folders, monkeypatch):
  def prompts(*_, **__):
    raise ValueError("only 7 lines")

  monkeypatch.setattr(python_corpus, "prompts", prompts)
  config = rsd_config.get_config()
  config.update(prompt_length=8, max_new_tokens=8)
  with pytest.raises(launch.UserError, match="only 7 lines"):
    prompt_tasks.load(config, helpers.load_pair(*folders))


def test_plan_runs_a_tree_of_two_experiments_once():
  methods, points = grid()
  names = [method.name for method in methods]
  assert names[0] == "autoregressive" and len(set(names)) == len(names)
  assert "rsd_c(2-2)" in points["length", 2]
  assert "rsd_c(2-2)" in points["budget", 6]
  assert {name for part in points.values() for name in part} == set(names[1:])
  # The default has a tree of each method a point.
  _, default = method_grid.from_config(rsd_config.get_config())
  for point, some in default.items():
    assert [name.split("(")[0] for name in some] == [
        "speculative", "spectr", "rsd_c", "rsd_s"]
    assert set(some) <= set(points[point])


def grid(**fields):
  """Methods and points of all trees of the paper, or some of them."""
  config = rsd_config.get_config("full")
  config.update(fields)
  return method_grid.from_config(config)


def widths(method):
  return method.sampled.drafter.layout.widths


@pytest.mark.parametrize("budget", [6, 10, 14, 21, 30])
def test_trees_of_a_budget_have_its_size(budget):
  plain, *methods = grid(lengths=(), budgets=(budget,))[0]
  # The baseline, a chain, one tree of SpecInfer, two of SpecTr and RSD-S each,
  # three of RSD-C.
  assert plain.name == "autoregressive" and len(methods) == 9
  assert {sum(widths(method)) for method in methods} == {budget}


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_trees_of_a_length_have_its_depth(length):
  sizes = {}
  for method in grid(lengths=(length,), budgets=())[0][1:]:
    assert len(widths(method)) == length
    sizes.setdefault(method.name.split("(")[0], set()).add(sum(widths(method)))
  # Trees are compared with trees of their size.
  assert sizes["speculative"] == {length}
  assert sizes["spectr"] == sizes["rsd_s"] >= sizes["specinfer"]
  assert sizes["rsd_c"] & sizes["rsd_s"]


@pytest.mark.parametrize("task", ["humaneval", "dolly"])
def test_trees_of_qwen_coder(task):
  methods, points = method_grid.from_config(rsd_qwen_coder.get_config(task))
  by_name = {method.name: method for method in methods}
  for (experiment, point), names in points.items():
    assert {tree_figures.label(name) for name in names} == {
        "SD", "SpecTr", "SpecInfer", "RSD-C", "RSD-S", "RSD-S, traversal",
        "sequoia"}
    for name in names:
      sizes = widths(by_name[name])
      assert sum(sizes) <= 30
      assert point == (sum(sizes) if experiment == "budget" else len(sizes))


@pytest.mark.parametrize("update, message", [
    ({"lengths": (9,)}, "length 9 has no trees; there are 2, 3, 4, 5"),
    ({"budgets": (7,)}, "budget 7 has no trees"),
    ({"methods": ("medusa",)}, "methods: 'medusa' is no method"),
    ({"batch": 0}, "batch=0"),
    ({"prompts": -1}, "prompts=-1"),
    ({"batch": 4, "queue": 4}, "queue=4: 0, or more than batch=4"),
    ({"temperatures": ()}, "temperatures"),
    ({"methods": ("rsd_s", "pearl")}, "'pearl' has no tree here"),
    ({"methods": ("rsd_s(9, 2)",)}, "'rsd_s.9, 2.' has no tree here, by --con"),
])
def test_plan_refuses(update, message):
  config = rsd_config.get_config()
  config.update(update)
  with pytest.raises(launch.UserError, match=message):
    method_grid.from_config(config)


def test_trees_as_strings():
  config = rsd_config.get_config()
  with config.unlocked():
    config.trees.length = {"2": ("rsd_s(7, 2)", {"name": "rsd_c((2, 2))"},
                                 "speculative(2, 'block')", "rsd_s(3, 2)")}
  config.update(lengths=(2,), budgets=(), methods=("rsd_s(7x2)", "rsd_c"))
  methods, points = method_grid.from_config(config)
  assert methods[1:] == [dj.methods.rsd_s(7, 2), dj.methods.rsd_c((2, 2))]
  assert points == {("length", 2): ["rsd_s(7x2)", "rsd_c(2-2)"]}
  with config.unlocked():
    config.trees.length = {"2": ("rsd_s(7",)}
  with pytest.raises(launch.UserError, match="trees.length.2='rsd_s.7': a me"):
    method_grid.from_config(config)
  del config.trees["length"]
  with pytest.raises(launch.UserError, match="has no trees; there are none"):
    method_grid.from_config(config)
  with pytest.raises(ValueError, match="'huge' is not one of default, smoke"):
    rsd_config.get_config("huge")


def test_real_text_in_few_programs():
  """The two experiments of the paper, in a compilation for each tree."""
  config = rsd_config.get_config("smollm2")
  methods, points = method_grid.from_config(config)
  names = [method.name for method in methods]
  assert {x for x, _ in points} == {"length", "budget"}
  assert {name.partition("(")[0] for name in names} == {
      "autoregressive", "speculative", "rsd_c", "rsd_s", "opt_tree",
      "prompt_lookup", "suffix", "copy_or_draft"}
  assert len(names) == len(set(names)) <= 12 and config.buckets == 1
  for (experiment, point), group in points.items():
    for method in methods:
      if method.name in group and method.name.startswith(("rsd", "opt")):
        layout = method.sampled.drafter.layout
        assert point == (tree.depth(layout) if experiment == "length"
                         else tree.num_nodes(layout)), method.name
  # Each prompt is timed beside plain decoding of it.
  assert config.batch == 1 and config.references >= config.prompts


def test_trees_of_heads_are_equally_large():
  config = rsd_tables.get_config("heads")
  methods, points = method_grid.from_config(config)
  by_name = {method.name: method for method in methods}
  for (_, nodes), names in points.items():
    for name in names:
      size = tree.num_nodes(by_name[name].sampled.drafter.layout)
      assert size <= nodes
      assert size >= 0.8 * nodes or name.startswith("speculative")


def test_what_a_head_cannot_draft_is_left_out():
  """Of each method some trees are left, and what needs no head is."""
  config = rsd_tables.get_config("heads")
  methods, points = method_grid.from_config(config)
  methods.append(dj.methods.prompt_lookup(8))
  head = dj.Head(*[None] * 4, 7, (3,), lambda depth: 1, depth=4)
  pair = model_pair.ModelPair(None, None, head, None, None, 0.1)
  left, some, note = method_grid.that_fit(pair, methods, points)
  assert note == ("The head drafts 4 levels: "
                  f"{len(methods) - len(left)} deeper trees were left out.")
  assert left[-1] is methods[-1]
  for point, names in some.items():
    assert {x.split("(")[0] for x in names} == {
        x.split("(")[0] for x in points[point]}
    assert "speculative(7, traversal)" not in names
  whole = method_grid.that_fit(pair._replace(draft=None), methods, points)
  assert whole == (methods, points, "")
