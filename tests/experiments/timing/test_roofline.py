"""What forwards read, and measured costs, on tiny models."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.timing import forward_cost, roofline
from models import transformer
from support import tiny_models as tiny


def test_untied_embeddings_are_not_read():
  model = tiny.random_model(tiny.LLAMA)
  table = tiny.LLAMA.vocab_size * tiny.LLAMA.dim
  total = sum(x.size for x in jax.tree.leaves(model.params))
  assert roofline.weight_bytes(tiny.LLAMA, model.params) == 4 * (total - table)


def test_tied_embeddings_are_the_output_layer():
  model = tiny.random_model(tiny.OPT)
  positions = tiny.OPT.max_length * tiny.OPT.dim
  total = sum(x.size for x in jax.tree.leaves(model.params))
  assert roofline.weight_bytes(tiny.OPT, model.params) == 4 * (
      total - positions)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_of_experts_those_of_a_token_count(scan_layers):
  config = dataclasses.replace(tiny.MIXTRAL, scan_layers=scan_layers)
  result, more = (roofline.weight_bytes(x, transformer.abstract_params(x))
                  for x in (config, dataclasses.replace(config,
                                                        experts_per_token=3)))
  expert = 3 * config.dim * config.hidden_dim
  assert more - result == 4 * config.num_layers * expert


@pytest.mark.parametrize("weights,bits", [("bfloat16", 16), ("int8", 8)])
def test_weights_of_fewer_bits_are_read_as_such(weights, bits):
  config = dataclasses.replace(tiny.LLAMA, weights=weights)
  whole, narrow = (roofline.weight_bytes(x, transformer.abstract_params(x))
                   for x in (tiny.LLAMA, config))
  norms = 4 * (2 * tiny.LLAMA.num_layers + 1) * tiny.LLAMA.dim
  rest = narrow - norms - (whole - norms) * bits // 32
  # A scale for each row.
  rows = tiny.LLAMA.vocab_size + tiny.LLAMA.num_layers * (
      2 * tiny.LLAMA.dim + 2 * tiny.LLAMA.hidden_dim + tiny.LLAMA.head_dim * (
          tiny.LLAMA.num_heads + 2 * tiny.LLAMA.num_kv_heads))
  assert rest == (4 * rows if weights == "int8" else 0)


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
