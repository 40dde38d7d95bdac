"""Tests of `experiments.cdsl` and what it is made of, on a tiny pair."""

import json
import re

import numpy as np
import pytest

from configs import cdsl as cdsl_config
import models_for_tests as tiny
from experiments import cdsl
from experiments import constrained_cells
from experiments import constrained_report
from experiments import constrained_tasks
from experiments import cost_model
from experiments import launch
from experiments import quality
from experiments import results

_SIZES = {"num_candidates": 2, "lookahead": 2}
_METHODS = ({"label": "greedy", "name": "autoregressive"},
            {"label": "best", "name": "best_of_n", "num_samples": 2,
             "temperature": 1.0},
            {"label": "CDLH", "name": "cdlh", **_SIZES},
            {"label": "CDSL", "name": "cdsl", **_SIZES})


@pytest.fixture
def commongen(tmp_path):
  """A folder like CommonGen's, of three examples."""
  lines = {"dev.src_alpha.txt": ["a b", "i", "o e"],
           "dev.tgt.txt": ["a or b", "i am", "o e"],
           "dev.constraint.json": ['[["a", "A"], ["b"]]', '[["i"]]',
                                   '[["o"], ["e", "E"]]']}
  for name, text in lines.items():
    (tmp_path / name).write_text("\n".join(text) + "\n")
  return str(tmp_path)


def config(folders, corpus="", **fields):
  found = cdsl_config.get_config()
  found.update(target=folders[0], draft=folders[1], corpus=corpus,
               prompt_length=8, max_new_tokens=6, methods=_METHODS, examples=3,
               batch=2, common=0, **fields)
  return found


def measured(settings, path, labels):
  """Records of some of the methods, and how often each was decoded."""
  pair = launch.load_pair(settings.target, settings.draft)
  task = constrained_tasks.load(settings, pair.tokenizer)
  entries = {k: v for k, v in constrained_cells.entries(settings).items()
             if k in labels}
  params, batches = constrained_cells.make_batches(settings, task, pair)
  calls = []

  def decode(entry):
    inner = constrained_cells.decoder(settings, pair, task, params, entry)

    def counted(batch):
      calls.append(entry.label)
      return inner(batch)

    return counted

  with tiny.quickly_compiled():
    records = cdsl.measure(entries, decode, batches, task, pair.tokenizer, path)
  return records, calls


def test_from_files_to_report(folders, commongen, tmp_path):
  settings = config(folders, commongen, task="commongen")
  path = tmp_path / results.RESULTS
  _, calls = measured(settings, path, ("greedy", "CDLH"))
  assert calls.count("CDLH") == 3
  labels = [spec["label"] for spec in _METHODS]
  records, calls = measured(settings, path, labels)
  # What has a result is not run again, but for the baseline's timings.
  assert "CDLH" not in calls and calls.count("CDSL") == 3
  assert [r["label"] for r in records] == labels
  assert [json.loads(line)["label"] for line in path.read_text().splitlines()
          ] == ["greedy", "CDLH", "best", "CDSL"]
  for record in records:
    assert len(record["soft"]) == len(record["texts"]) == 3
    assert set(record["soft"]) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(record["hard"], np.array(record["soft"]) == 1)
    for text, soft in zip(record["texts"], record["soft"]):
      assert soft or not re.search(r"\bi\b", text) or "a b" in text
  by_label = {r["label"]: r for r in records}
  assert np.sum(by_label["CDSL"]["states"]) >= 3
  assert by_label["greedy"]["reward_calls"] == [0, 0, 0]
  assert by_label["best"]["reward_calls"] == [2, 2, 2]
  constrained_report.write(tmp_path, records, settings)
  summary = (tmp_path / "summary.md").read_text()
  assert all(f"| {label} |" in summary for label in labels)
  assert (tmp_path / "tradeoff.png").stat().st_size
  # Of such a model the time is not that of its forwards, so no more of it.
  assert "CDSL against CDLH: hard coverage" in (
      constrained_report.terminal(records))


def test_common_identifiers(folders, tmp_path):
  """A corpus of one's own, in which `spam` is common and `eggs` is not."""
  for i in range(64):
    lines = [f"n{i}{j} = spam" for j in range(40)] + ["eggs = 2"] * (i < 8)
    (tmp_path / f"module{i}.py").write_text("\n".join(lines) + "\n")
  settings = config(folders, str(tmp_path))
  settings.common = 1
  pair = launch.load_pair(*folders)
  task = constrained_tasks.load(settings, pair.tokenizer)
  assert task.concepts == [[["spam"]]] * 3
  settings.max_new_tokens = 1
  with pytest.raises(launch.UserError, match="only 0 held-out prompts"):
    constrained_tasks.load(settings, pair.tokenizer)


def test_python_examples(folders):
  settings = config(folders)
  pair = launch.load_pair(*folders)
  task = constrained_tasks.load(settings, pair.tokenizer)
  assert len(task.prompts) == len(task.concepts) == len(task.references) == 3
  assert task.eos_id is None
  for prompt, concepts, text in zip(task.prompts, task.concepts,
                                    task.references):
    assert len(prompt) == 8 and 1 <= len(concepts) <= settings.concepts
    for form, in concepts:
      assert form.isidentifier() and re.search(rf"\b{form}\b", text)


@pytest.mark.parametrize("fields, message", [
    ({"task": "chess"}, "task='chess' is not one of 'python', 'commongen'"),
    ({"task": "commongen", "corpus": "nowhere"}, "nowhere/dev.src_alpha.txt"),
    ({"examples": 0}, "examples=0: at least 1"),
    ({"task": "commongen", "examples": 9}, "examples=9: .* has 3 concept sets"),
])
def test_tasks_that_cannot_be(folders, commongen, fields, message):
  settings = config(folders, commongen)
  settings.update(fields)
  with pytest.raises(launch.UserError, match=message):
    constrained_tasks.load(settings, launch.load_pair(*folders).tokenizer)


@pytest.mark.parametrize("spec, message", [
    ({"name": "autoregressive"}, "label None is missing"),
    ({"label": "greedy", "name": "autoregressive"}, "comes twice"),
    ({"label": "x", "name": "cdl"}, "'cdl' is not one of"),
    ({"label": "x", "name": "cdlh", "width": 3}, "cdlh takes num_candidates"),
])
def test_methods_that_cannot_be(folders, spec, message):
  settings = config(folders)
  with settings.unlocked():
    settings.methods = (*_METHODS, spec)
  with pytest.raises(launch.UserError, match=message):
    constrained_cells.entries(settings)


@pytest.mark.parametrize("spec, message", [
    ({"name": "cdlh", "temperature": 1.0, **_SIZES}, "temperature=1.0"),
    ({"name": "best_of_n", "num_samples": 2}, "temperatures above 0"),
    ({"name": "beam_search", "num_beams": 300}, "300 siblings")])
def test_what_generate_would_refuse(folders, spec, message):
  settings = config(folders)
  with settings.unlocked():
    settings.methods = ({"label": "x", **spec},)
  pair = launch.load_pair(*folders)
  task = constrained_tasks.load(settings, pair.tokenizer)
  entry = constrained_cells.entries(settings)["x"]
  with pytest.raises(launch.UserError, match=message):
    constrained_cells.check(settings, pair, task, entry)


def test_presets():
  for preset in ("default", "smoke", "commongen", "commongen,sweep"):
    entries = constrained_cells.entries(cdsl_config.get_config(preset))
    assert "greedy" in entries
  with pytest.raises(ValueError, match="'nothing' is not one of"):
    cdsl_config.get_config("smoke,nothing")


def test_quality():
  texts = ["a cat sat down", "a b a b"]
  np.testing.assert_allclose(quality.bleu(texts, texts), 100)
  np.testing.assert_allclose(
      quality.rouge_l(["a cat", "x"], ["a cat sat", "y"]), [80, 0])
  np.testing.assert_allclose(quality.distinct_2([*texts, "one"]), [1, 2 / 3, 1])


def record(method, **fields):
  return {"spec": f"{method}(4x3, w=1), T=0", "target_calls": [10, 20],
          "draft_calls": [0, 0], **fields}


def test_cost_model():
  """Worked by hand: 2 first forwards, then 28 of kappa in 1..4."""
  cdlh = record("cdlh")
  cdsl_record = record("cdsl", draft_calls=[6, 6],
                       states=[[1, 1, 0, 0], [1, 0, 1, 0]],
                       target_calls=[5, 4])
  # Four iterations, one search of 3, two forwards of the target's lookahead.
  least = min(30 / (12 + 16 + 3 + 2), 114 / (12 + 16 + 12 + 2))
  most = max(30 / (4 + 3 + 2), 114 / (4 + 12 + 2))
  assert cost_model.sizes(cdlh) == (4, 3)
  np.testing.assert_allclose(cost_model.bounds(cdsl_record, cdlh),
                             (least, most))
