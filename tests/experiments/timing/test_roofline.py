"""Bounds of forwards, and measured costs, on tiny models."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.timing import forward_cost, roofline
from models import transformer
from support import tiny_models as tiny

ROOF = roofline.Roofline(bandwidth=1000.0, flops={"float32": 100.0})


def test_untied_embeddings_are_not_read():
  model = tiny.random_model(tiny.LLAMA)
  sizes = roofline.sizes(tiny.LLAMA, model.params)
  table = tiny.LLAMA.vocab_size * tiny.LLAMA.dim
  total = sum(x.size for x in jax.tree.leaves(model.params))
  assert sizes.weights == 4 * (total - table)
  # Two layers of two heads with four channels, keys and values.
  assert sizes.slot == 4 * 2 * 2 * 4 * 2
  norms = (2 * tiny.LLAMA.num_layers + 1) * tiny.LLAMA.dim
  assert sizes.multiplied == total - table - norms


def test_tied_embeddings_are_the_output_layer():
  model = tiny.random_model(tiny.OPT)
  sizes = roofline.sizes(tiny.OPT, model.params)
  positions = tiny.OPT.max_length * tiny.OPT.dim
  total = sum(x.size for x in jax.tree.leaves(model.params))
  assert sizes.weights == 4 * (total - positions)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_of_experts_those_of_a_token_count(scan_layers):
  config = dataclasses.replace(tiny.MIXTRAL, scan_layers=scan_layers)
  result, more = (roofline.sizes(x, transformer.abstract_params(x)) for x in (
      config, dataclasses.replace(config, experts_per_token=3)))
  expert = 3 * config.dim * config.hidden_dim
  assert more.multiplied - result.multiplied == config.num_layers * expert
  assert more.weights - result.weights == 4 * config.num_layers * expert


@pytest.mark.parametrize("weights,bits", [("bfloat16", 16), ("int8", 8)])
def test_weights_of_fewer_bits_are_read_as_such(weights, bits):
  whole = roofline.sizes(tiny.LLAMA, transformer.abstract_params(tiny.LLAMA))
  config = dataclasses.replace(tiny.LLAMA, weights=weights)
  sizes = roofline.sizes(config, transformer.abstract_params(config))
  assert sizes.multiplied == whole.multiplied and sizes.slot == whole.slot
  norms = whole.weights - 4 * whole.multiplied
  rest = sizes.weights - norms - whole.multiplied * bits // 8
  # A scale for each row.
  rows = tiny.LLAMA.vocab_size + tiny.LLAMA.num_layers * (
      2 * tiny.LLAMA.dim + 2 * tiny.LLAMA.hidden_dim + tiny.LLAMA.head_dim * (
          tiny.LLAMA.num_heads + 2 * tiny.LLAMA.num_kv_heads))
  assert rest == (4 * rows if weights == "int8" else 0)


@pytest.mark.parametrize("fresh,live,seconds", [
    (1, 0, 0.4), (1, 50, 0.9), (10, 50, 2.0)])
def test_a_bound_is_reading_or_multiplying(fresh, live, seconds):
  model = roofline.Sizes(weights=400, slot=10, multiplied=10, dtype="float32")
  result = roofline.step_seconds(ROOF, model, 1, fresh, live)
  assert result == pytest.approx(seconds)


@pytest.mark.parametrize("rate,seconds", [(20.0, 2.0), (400.0, 0.9)])
def test_numbers_of_16_bits_may_be_multiplied_as_float32(rate, seconds):
  roof = ROOF._replace(flops={**ROOF.flops, "bfloat16": rate})
  model = roofline.Sizes(weights=400, slot=10, multiplied=10, dtype="bfloat16")
  result = roofline.step_seconds(roof, model, 1, 10, 50)
  assert result == pytest.approx(seconds)


def test_rows_share_the_weights_and_nothing_else():
  model = roofline.Sizes(weights=400, slot=10, multiplied=1, dtype="float32")
  assert roofline.step_seconds(ROOF, model, 4, 1, 10) == pytest.approx(0.8)


def test_a_device_has_a_roof(monkeypatch):
  monkeypatch.setattr(roofline, "_BYTES", {"cpu": 2**20})
  monkeypatch.setattr(roofline, "_SIDES", {"cpu": 64})
  result = roofline.measure(("float32", "bfloat16"))
  assert result.bandwidth > 0 and set(result.flops) == {"float32", "bfloat16"}
  assert all(rate > 0 for rate in result.flops.values())


def test_costs_of_forwards():
  model = tiny.random_model(dataclasses.replace(tiny.LLAMA, num_layers=1))
  result = forward_cost.measure(model.lm, model.params, 2, 3, 8, (1, 4))
  assert len(result) == 2 and min(result) > 0


def test_costs_are_those_of_different_tokens(monkeypatch):
  """Equal ones would choose the same experts, however many they are."""
  seen = []

  def timed(function, lm, params, cache, fresh, count):
    seen.append(np.asarray(fresh))
    return None, 1.0

  monkeypatch.setattr(forward_cost.stopwatch, "timed", timed)
  model = tiny.random_model(tiny.MIXTRAL)
  forward_cost.timer(model.lm, model.params, 2, 3, 8, 4)
  for fresh in seen:
    assert fresh.shape == (2, 4) and fresh.dtype == np.int32
    assert len(np.unique(fresh)) > 4 and fresh.max() < model.lm.vocab_size
  assert seen
