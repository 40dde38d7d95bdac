"""Tests of other tools in processes of their own."""


import jax
import numpy as np
import pytest

from experiments.rivals import engines, subprocess_server
from models import checkpoints
from support import helpers, tiny_models as tiny

PROMPTS = [[5, 1, 12, 7, 3, 5, 1]]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NEW = 12


@pytest.fixture
def fake(monkeypatch):
  """The name of a server that only repeats."""
  monkeypatch.setitem(engines.ENGINES, "fake",
                      engines.Engine("support.rival_server", ()))
  monkeypatch.setenv("PYTHONPATH",
                     f"{helpers.REPOSITORY}:{helpers.REPOSITORY / 'tests'}")
  return "fake"


def test_a_server_answers_and_what_it_prints_is_no_answer(fake):
  rival = subprocess_server.start(fake, {"calls": 7})
  try:
    assert rival.answer == {"device": "none"}
    with pytest.raises(subprocess_server.Failure,
                       match="RuntimeError: no reason"):
      subprocess_server.generate(rival, {"fail": True})
    # It goes on with the next request.
    answer = subprocess_server.generate(rival, {"prompts": PROMPTS})
    assert answer["tokens"] == PROMPTS and answer["target_calls"] == 7
    with pytest.raises(subprocess_server.Failure,
                       match="has ended: out of memory"):
      subprocess_server.generate(rival, {"die": True})
    with pytest.raises(subprocess_server.Failure, match="has ended"):
      subprocess_server.generate(rival, {"prompts": PROMPTS})
  finally:
    subprocess_server.stop(rival)


def test_a_model_that_cannot_be_loaded(fake):
  with pytest.raises(subprocess_server.Failure) as e:
    subprocess_server.start(fake, {"broken": True})
  assert str(e.value) == "ValueError: this model is broken"


def test_missing_packages(monkeypatch):
  fake = engines.Engine("support.rival_server", ("json", "no_such_package"))
  monkeypatch.setitem(engines.ENGINES, "fake", fake)
  assert engines.missing("fake") == ["no_such_package"]
  monkeypatch.setitem(engines.ENGINES, "fake", fake._replace(packages=("jax",)))
  assert engines.missing("fake") == []
  assert engines.versions("fake") == f"jax {jax.__version__}"


def test_peak_of_memory():
  if not subprocess_server.reset_peak():
    pytest.skip("this system cannot forget a peak")
  before = subprocess_server.peak_memory()
  size = 1 << 27
  data = bytearray(size)
  data[::4096] = b"x" * len(data[::4096])
  assert subprocess_server.peak_memory() > before + 0.9 * size
  del data
  assert subprocess_server.peak_memory() > before + 0.9 * size
  subprocess_server.reset_peak()
  assert subprocess_server.peak_memory() < before + 0.5 * size


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  """transformers with a tiny pair."""
  for name in engines.ENGINES["transformers"].packages:
    pytest.importorskip(name, reason="needs pip install -e '.[parity]'")
  folder = tmp_path_factory.mktemp("rivals")
  load = {"dtype": "float32", "draft_dtype": "bfloat16", "threads": 1}
  target = tiny.random_model(tiny.LLAMA)
  for name, model in (("target", target), ("draft", tiny.noisy(target, 0.1))):
    checkpoints.to_hf(folder / name, tiny.LLAMA, model.params)
    load[name] = str(folder / name)
  rival = subprocess_server.start("transformers", load)
  yield rival
  subprocess_server.stop(rival)


def _generate(server, setting, length=0, prompts=PROMPTS, **probs):
  return subprocess_server.generate(server, {
      "setting": setting, "length": length, "prompts": prompts, "seed": 0,
      "max_new_tokens": NEW, **GREEDY, **probs})


@pytest.mark.long
def test_transformers_writes_our_greedy_text(server):
  prompts = np.array(PROMPTS, np.int32)
  lengths = np.array([len(PROMPTS[0])])
  expected = tiny.greedy(tiny.random_model(tiny.LLAMA), prompts, lengths, NEW)
  plain = _generate(server, "plain")
  assert server.answer["threads"] == 1
  assert plain["tokens"] == expected
  assert plain["target_calls"] == NEW
  assert plain["seconds"] > 0
  for setting in ("assisted", "lookup"):
    actual = _generate(server, setting, 3)
    assert actual["tokens"] == expected
    # The distribution says how many are accepted; the draft is close to the
    # target.
    assert NEW / 4 <= actual["target_calls"] <= NEW
  assert _generate(server, "assisted", 3)["target_calls"] < NEW


@pytest.mark.long
def test_transformers_samples_batches(server):
  results = [_generate(server, "plain", prompts=PROMPTS * 2, temperature=1.0,
                       seed=seed)["tokens"] for seed in (0, 0, 1)]
  assert results[0] == results[1] != results[2]
  assert [len(row) for row in results[0]] == [NEW, NEW]
  # None but the most probable tokens are left.
  certain = [_generate(server, "plain", temperature=temperature, min_p=1.0)
             for temperature in (0.0, 1.0)]
  assert certain[0]["tokens"] == certain[1]["tokens"]


@pytest.mark.long
def test_transformers_assists_no_batches(server):
  with pytest.raises(subprocess_server.Failure, match="batch_size = 1"):
    _generate(server, "assisted", 2, prompts=PROMPTS * 2)
