"""Tests of `experiments.devices.device_compiler`."""

import shutil
import types

from absl import flags
from absl.testing import flagsaver
import jax
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import device_compiler
from experiments.flags import model_flags
from experiments.timing import roofline
from models import checkpoints, transformer
from models.transformer import quantization


@pytest.mark.parametrize("error, message, expected", [
    ("RESOURCE_EXHAUSTED: Ran out of memory: 16.48G exceeds 15.75G.",
     "16.48G exceeds 15.75G. More of --mesh=model:N", launch.UserError),
    ("INTERNAL: a bug", "a bug", jax.errors.JaxRuntimeError)])
def test_what_is_too_large_is_told_and_other_errors_stay(error, message,
                                                         expected):
  def lower(lowering_platforms):
    raise jax.errors.JaxRuntimeError(error)

  with pytest.raises(expected, match=message):
    device_compiler.compile_(types.SimpleNamespace(lower=lower))


def test_models_of_devices_and_their_number():
  for name, memory, count in (("h100:8", 79, 8), ("v5e:4x4", 16, 16),
                              ("any:1", None, 1)):
    sheet, number = device_compiler.sheet(name)
    assert number == count
    assert memory is None and sheet is None or sheet.memory == memory * 2**30
  for name in ("h100", "v5e:4x", "v5e:0"):
    with pytest.raises(launch.UserError, match=f"--devices={name}: a model"):
      device_compiler.sheet(name)


def test_weights_of_other_devices_are_not_as_stored(folders):
  flags.FLAGS.mark_as_parsed()
  with flagsaver.as_parsed(target=str(folders[0]), draft=str(folders[1])):
    pair = model_flags.open_pair("rsd_s", [dj.methods.rsd_s(2, 3)],
                                 tokens=False)
  assert pair.source.weights == (quantization.DTYPE,) * 2


def test_an_estimate_from_configs_alone(python, folders, tmp_path):
  for name, folder in zip(("target", "draft"), folders):
    (tmp_path / name).mkdir()
    shutil.copy(f"{folder}/config.json", tmp_path / name)
  got = python("-m", "experiments.estimate", f"--target={tmp_path / 'target'}",
               f"--draft={tmp_path / 'draft'}", "--method=rsd_s(2, 3)",
               "--batch=2", "--prompt_length=9", "--max_new_tokens=8")
  assert got.status == 0, got.errors
  lines = got.output.splitlines()
  assert lines[0] == ("rsd_s(2x3) on 1 x 1 of 1 any device: 2 rows of 9 + 8 "
                      "tokens")
  config = checkpoints.load_config(folders[0])
  weights = roofline.weight_bytes(config, transformer.abstract_params(config))
  assert lines[1].startswith("a device needs 0.")
  assert next(x for x in lines if x.startswith("target, once")).split()[2] == (
      f"{weights / 1e6:,.1f}")
  assert any(x.startswith("draft, 3 times") for x in lines)
