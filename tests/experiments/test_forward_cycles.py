"""What one device has of a layer whose cycles are counted."""

import dataclasses

import pytest

from experiments import forward_cycles
from experiments.app import launch
from models.transformer import sharding
from support import tiny_models as tiny


def test_a_part_is_what_a_mesh_gives_a_device():
  config = dataclasses.replace(tiny.LLAMA, num_heads=8, num_kv_heads=4,
                               hidden_dim=32, vocab_size=64)
  found = forward_cycles.part(config, 4)
  assert (found.num_heads, found.num_kv_heads) == (2, 1)
  assert (found.hidden_dim, found.vocab_size) == (8, 16)
  assert (found.dim, found.head_dim) == (config.dim, config.head_dim)
  assert 4 in sharding.partition(config)
  assert forward_cycles.part(config, 1) == config


@pytest.mark.parametrize("number,error", [
    (3, "--part=3 does not divide num_heads=8"),
    (8, "--part=8 does not divide num_kv_heads=4")])
def test_a_part_that_is_none(number, error):
  config = dataclasses.replace(tiny.LLAMA, num_heads=8, num_kv_heads=4)
  with pytest.raises(launch.UserError, match=error):
    forward_cycles.part(config, number)
