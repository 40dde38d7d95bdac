"""The estimate of memory against what there is, and what is refused."""

import dataclasses
import json
import shutil
import types

import jax
import jax.numpy as jnp
import pytest

import decoding_jax as dj
from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree, tree_decoder
from decoding_jax.validation import memory
from experiments.app import launch
from experiments.devices import draft_levels, memory_estimate, model_pair
from models import checkpoints, transformer
from support import tiny_models as tiny

METHOD = dj.methods.rsd_s(3, 2)
PLAIN = dj.methods.autoregressive()
CONFIG = transformer.Config(
    vocab_size=2048, dim=64, num_layers=2, num_heads=8, num_kv_heads=2,
    head_dim=16, hidden_dim=96, max_length=2048)


def pair_of(target, draft, load=transformer.abstract_params):
  return model_pair.ModelPair(
      transformer.language_model(target), load(target),
      transformer.language_model(draft), load(draft), None, 1.0)


def arrays(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def parameters(config):
  """Arrays of a model, as `checkpoints.load` would have them."""
  model = tiny.random_model(dataclasses.replace(config, weights="dtype"))
  if config.weights == "dtype":
    return model.params
  return checkpoints.quantize(config, model.params)[1]


@pytest.mark.cases(1)
@pytest.mark.parametrize("scan, weights", [
    (False, "dtype"), (True, "dtype"), (False, "int8"), (True, "int8")])
def test_weights_and_caches_are_exact(scan, weights):
  configs = [dataclasses.replace(config, scan_layers=scan, dtype=dtype,
                                 weights=weights)
             for config, dtype in ((tiny.LLAMA, "bfloat16"),
                                   (tiny.OPT, "float32"))]
  real = pair_of(*configs, load=parameters)
  batch, width, new = 3, 5, 40
  need = memory_estimate.estimate(pair_of(*configs), [METHOD.sampled], batch,
                                  width, new)
  assert need.weights == arrays((real.target_params, real.draft_params))
  decoder = tree_decoder.as_decoder(METHOD.sampled)
  caches = [prefill.prefill(
      prefill.capacity(width, new + decoder.max_slots_ahead), prefill.CHUNK, lm,
      params, prompts=jnp.ones((batch, width), jnp.int32),
      lengths=jnp.full(batch, 2)) for lm, params in (
          (real.target, real.target_params), (real.draft, real.draft_params))]
  assert need.caches == arrays(caches)
  # Seven nodes are scored, of which the four above the last level have
  # distributions.
  assert need.logits == 4 * batch * 13 * (7 + 4)
  assert need.masks == 2 * batch * 7 * 7
  # Without a drafter there is only the target; without a tree only a root.
  alone = memory_estimate.estimate(pair_of(*configs), [PLAIN.greedy], batch,
                                   width, new)
  assert alone.weights == arrays(real.target_params)
  assert alone.caches <= arrays(caches[0])
  assert alone.logits == 4 * batch * 13
  # Of a search it is its beams.
  beams = memory_estimate.estimate(
      pair_of(*configs), [dj.methods.beam_search(3).greedy], batch, width, new)
  assert beams.logits == 4 * batch * 13 * 3


@pytest.mark.parametrize("method, carried", [
    (dj.methods.token_recycling((3, 2), 2), 4 * 3 * 13 * 2),
    (dj.methods.prompt_lookup(3, 2), 0), (dj.methods.suffix(5, 3), 0)],
                         ids=lambda x: getattr(x, "name", ""))
def test_drafters_without_a_model(method, carried):
  pair = pair_of(tiny.LLAMA, tiny.OPT)
  both, alone = (memory_estimate.estimate(x, [method.sampled], 3, 5, 40)
                 for x in (pair, pair._replace(draft=None, draft_params=None)))
  assert both == alone
  plain = memory_estimate.estimate(pair, [PLAIN.sampled], 3, 5, 40)
  slots = memory_estimate.most_slots([method.sampled], 5, 40)
  assert memory_estimate.most_slots([PLAIN.sampled], 5, 40) == slots
  assert both.weights == plain.weights
  assert both.caches == plain.caches + carried
  scored, drafted = memory_estimate.nodes(method.sampled)
  assert (scored, drafted) == (
      1 + tree.num_nodes(method.sampled.drafter.layout), 0)
  assert both.logits == 4 * 3 * 13 * scored


def test_levels_of_draft_models():
  chain = dj.methods.rsd_s(3, 2).sampled.drafter
  for drafter, widths, count in (
      (chain, (3, 3), 4),
      (chain._replace(layout=tree.free_layout(7, 3, 2), calls=3), (3, 3, 3), 7),
      (dj.methods.prompt_lookup(3).sampled.drafter, (), 0),
      (PLAIN.sampled.drafter, (), 0)):
    assert draft_levels.widths(drafter) == widths
    assert draft_levels.num_distributions(drafter) == count


def test_parts_of_a_mesh():
  whole, part = (memory_estimate.estimate(
      pair_of(CONFIG, CONFIG), [METHOD.sampled], 4, 9, 64, ways)
                 for ways in (memory_estimate.Ways(),
                              memory_estimate.Ways(2, 4)))
  for name, count in (("weights", 2), ("logits", 8), ("masks", 4),
                      ("caches", 8), ("temporaries", 8)):
    assert getattr(part, name) == getattr(whole, name) // count


@pytest.mark.parametrize("width", [9, 1025])
@pytest.mark.parametrize("weights", ["dtype", "int8"])
def test_temporaries_of_the_compiled_prefill(width, weights):
  """A bound, and not one that is far off where it matters."""
  pair = pair_of(*[dataclasses.replace(CONFIG, weights=weights)] * 2)
  need = memory_estimate.estimate(pair, [PLAIN.sampled], 2, width, 64)
  program = prefill.prefill.lower(
      prefill.capacity(width, 65), prefill.CHUNK, pair.target,
      pair.target_params, prompts=jax.ShapeDtypeStruct((2, width), jnp.int32),
      lengths=jax.ShapeDtypeStruct((2,), jnp.int32)).compile()
  result = program.memory_analysis().temp_size_in_bytes
  assert result <= need.temporaries
  assert width < 1025 or need.temporaries <= 2 * result


def test_windows_of_penalties_are_counted():
  """What a logits processor keeps of each token is there for each slot."""
  plain = pair_of(tiny.LLAMA, tiny.OPT)
  processor = dj.processors.occurrence_penalty(1.0, 0.0, 13, 300)
  target, target_params = dj.processors.apply(processor, (), plain.target,
                                              plain.target_params)
  pair = plain._replace(target=target, target_params=target_params)
  slots = memory_estimate.most_slots([METHOD.sampled], 5, 300)
  need, before = (memory_estimate.estimate(x, [METHOD.sampled], 2, 5, 300)
                  for x in (pair, plain))
  assert need.weights == before.weights
  # And for each, whether the prompt is over.
  assert need.caches - before.caches == 2 * slots * (300 * 4 + 1)


def check(monkeypatch, there, **kwargs):
  monkeypatch.setattr(memory_estimate, "device_memory", lambda device: there)
  memory_estimate.check(pair_of(CONFIG, CONFIG), [METHOD.sampled], 4, 9, 64,
                        **kwargs)


def test_what_does_not_fit_is_refused(monkeypatch):
  need = sum(memory_estimate.estimate(
      pair_of(CONFIG, CONFIG), [METHOD.sampled], 4, 9, 64))
  check(monkeypatch, need)
  check(monkeypatch, None)
  check(monkeypatch, need - 1, force=True)
  check(monkeypatch, need // 2, ways=memory_estimate.Ways(2, 2))
  with pytest.raises(launch.UserError) as error:
    check(monkeypatch, need - 1)
  line = str(error.value)
  assert "\n" not in line and f"needs {need / 2**20:.2f} MiB" in line
  for part in ("weights", "caches", "logits", "temporaries", "batch=4",
               "max_new_tokens=64", "--force"):
    assert part in line


def test_a_main_refuses_before_it_loads(python, folders, tmp_path):
  """A model of 17 TB that has no parameters at all."""
  config = checkpoints.load_config(folders[0])
  huge = dataclasses.replace(config, vocab_size=2**22, dim=2**20)
  shutil.copytree(folders[0], tmp_path, dirs_exist_ok=True)
  shutil.rmtree(tmp_path / "params")
  fields = json.loads((tmp_path / "config.json").read_text())
  (tmp_path / "config.json").write_text(
      json.dumps({**fields, **dataclasses.asdict(huge)}))
  runs = [python("-m", "experiments.generate", f"--target={tmp_path}",
                 f"--draft={folders[1]}", "--max_new_tokens=3",
                 "--prompt=import os", "--compilation_cache=", *flags)
          for flags in ([], ["--force"])]
  errors = [run.errors.removeprefix("Reading the models ...\n")
            for run in runs]
  assert [run.status for run in runs] == [2, 2]
  # With --force the same line is said, and no error.
  assert [len(text.splitlines()) for text in errors] == [1, 2], errors
  assert "a device needs 16" in errors[0] and "--force" in errors[0]
  assert errors[1].startswith("a device needs 16")
  assert "no folder params" in errors[1]


def test_memory_of_devices_and_of_a_control_group(monkeypatch):
  device = lambda platform, stats: types.SimpleNamespace(
      platform=platform, memory_stats=lambda: stats)
  assert memory_estimate.device_memory(device("tpu", {"bytes_limit": 7})) == 7
  assert memory_estimate.device_memory(device("tpu", None)) is None
  monkeypatch.setattr(memory, "host_memory", lambda: 16)
  monkeypatch.setattr(jax, "local_device_count", lambda: 4)
  assert memory_estimate.device_memory(device("cpu", None)) == 4


def test_memory_of_a_control_group(tmp_path):
  groups = tmp_path / "groups"
  plain = memory.host_memory(tmp_path, groups)
  assert plain > 2**28
  groups.write_text("1:name=systemd:/\n0::/user/run\n")
  (tmp_path / "user" / "run").mkdir(parents=True)
  (tmp_path / "user" / "run" / "memory.max").write_text("max\n")
  assert memory.host_memory(tmp_path, groups) == plain
  (tmp_path / "user" / "memory.max").write_text("5000\n")
  assert memory.host_memory(tmp_path, groups) == 5000
  (tmp_path / "memory").mkdir()
  (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4000\n")
  assert memory.host_memory(tmp_path, groups) == 4000
