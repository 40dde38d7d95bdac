"""Tests of `experiments.device_check`."""

import jax
import pytest

from experiments import device_check
from experiments.timing import roofline
from models import transformer

RATES = roofline.Roofline(2e9, {"float32": 1e12})


def test_the_device_is_described():
  assert device_check.device(RATES).endswith(
      "; reads 2.0 GB/s and multiplies 1,000 GFLOP/s in float32")


def test_forwards_are_compared_with_one_token(monkeypatch):
  monkeypatch.setattr(device_check.forward_cost, "measure",
                      lambda *_: [0.5, 1.0])
  config = device_check._TINY
  params = transformer.abstract_params(config)
  read = roofline.weight_bytes(config, params) / 2e9
  _, *lines = device_check.forwards((config, params), RATES, (1, 2), (1, 4))
  assert lines[-1] == ["2", "4", "1000.000", "2.00", f"{read:.0%}"]
  assert [x[0] for x in lines] == ["1", "1", "2", "2"]


def test_the_program(python):
  got = python("-m", "experiments.device_check", "--smoke")
  assert got.status == 0, got.errors
  device, *texts = got.output.splitlines()[:4]
  assert device.startswith(f"{jax.device_count()} x cpu")
  assert texts == [
      f"greedy texts of {x}: 0 of 8 differ from the CPU's"
      for x in device_check._GREEDY]


@pytest.mark.long
def test_a_model_of_ones_own(python):
  got = python("-m", "experiments.device_check", "--smoke",
               "--target=python-draft", "--weights=int8")
  assert got.status == 0, got.errors
  assert got.output.splitlines()[-7].split()[:2] == ["1", "1"]
  assert got.output.splitlines()[-1].split()[:2] == ["1", "64"]
  got = python("-m", "experiments.device_check", "--smoke", "--target=nowhere")
  assert got.status == 2 and "nowhere" in got.errors.splitlines()[-1]
