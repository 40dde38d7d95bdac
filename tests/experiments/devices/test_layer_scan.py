"""Layers that are scanned because a flag, or the device, says so."""

import dataclasses

from absl.testing import flagsaver
from absl import flags
import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.kernels import dispatch
from experiments.devices import (
    draft_kind, mesh as mesh_lib, mesh_shapes, model_pair)
from models import checkpoints
from models.text import tokenizers
from support import tiny_models as tiny, tiny_tasks

METHOD = dj.methods.rsd_s(2, 2)


@pytest.fixture(name="asked")
def _asked():
  """Sets the flag as a command line does."""
  with flagsaver.flagsaver():
    flags.FLAGS.mark_as_parsed()
    yield lambda value: setattr(flags.FLAGS, "scan_layers", value)


@pytest.fixture(name="target", scope="module")
def _target(folders, tmp_path_factory):
  """A target of three layers, as transformers writes it."""
  folder = tmp_path_factory.mktemp("target") / "hf"
  config = dataclasses.replace(checkpoints.load_config(folders[0]),
                               num_layers=3)
  checkpoints.to_hf(folder, config, tiny.init(jax.random.key(0), config),
                    tokenizers.load(folders[0]))
  return str(folder)


def test_the_default_depends_on_device_and_layers(asked, monkeypatch):
  few = dataclasses.replace(tiny.LLAMA, num_layers=draft_kind.FEW_LAYERS)
  many = dataclasses.replace(few, num_layers=draft_kind.FEW_LAYERS + 1)
  assert not draft_kind.scans_layers(many)  # On a CPU.
  assert draft_kind.scans_layers(dataclasses.replace(few, scan_layers=True))
  monkeypatch.setattr(dispatch, "_ahead", {"tpu"})
  assert draft_kind.scans_layers(many) and not draft_kind.scans_layers(few)
  stored = draft_kind.default_weights()
  asked("off")
  assert not draft_kind.scans_layers(many)
  assert draft_kind.default_weights() == stored
  asked("on")
  assert draft_kind.scans_layers(few)
  assert draft_kind.default_weights() == "dtype"  # Formats of layers differ.


@pytest.mark.cases(1)
@pytest.mark.parametrize("options, on_mesh", [
    ({}, False), ({"weights": "int8"}, True)], ids=["plain", "int8"])
def test_texts_are_those_of_unrolled_layers(target, asked, options, on_mesh):
  """Of a folder of transformers, drafted for by its own first layers."""
  results = {}
  for value in ("off", "on"):
    asked(value)
    pair = model_pair.open_pair(target, "layers:2", **options)
    pair = (mesh_lib.with_params(pair, mesh_shapes.make((1, 1))) if on_mesh
            else model_pair.with_params(pair))
    assert list(pair.target_params["layers"]) == (
        ["layer"] if value == "on" else ["layer_0", "layer_1", "layer_2"])
    results[value] = tiny_tasks.decoded(pair, METHOD, temperature=1.0)
  unrolled, scanned = results.values()
  np.testing.assert_array_equal(scanned.tokens, unrolled.tokens)
  np.testing.assert_allclose(scanned.log_probs, unrolled.log_probs, atol=1e-4)
