"""A call that cannot fit into memory is refused before it allocates."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.validation import memory
import decoding_jax as dj
from models import tabular
from support import tiny_models as tiny

TABLE = tabular.TabularLM(np.zeros((4, 4)))
GIB = 2**30


def generate(model, new, **kwargs):
  return dj.generate(jax.random.key(0), np.ones((2, 3), np.int32),
                     np.full(2, 3), method=dj.methods.autoregressive(),
                     target=model[0], target_params=model[1],
                     max_new_tokens=new, **kwargs)


@pytest.fixture(name="there")
def _there(monkeypatch):
  def has(size):
    monkeypatch.setattr(memory, "device_memory", lambda devices: size)
  return has


def test_texts(there):
  there(8 * GIB)
  with pytest.raises(ValueError, match=(
      r"needs at least 29\.80 GiB \(.*texts 29\.80.*\), and there are 8\.00 "
      "GiB: a smaller max_new_tokens")):
    generate(TABLE, 10**9)


@pytest.mark.parametrize("arguments, jit, least", [
    ({}, False, 0), ({"rows": 1}, False, 400_000), ({}, True, 800_000)],
                         ids=["grows", "queue", "jit"])
def test_caches(there, arguments, jit, least):
  """They begin small, but in a queue and inside of another program."""
  model = tiny.random_model(dataclasses.replace(tiny.LLAMA, max_length=0))
  there(300_000)
  run = lambda params: generate((model.lm, params), 3000, **arguments)
  if least:
    with pytest.raises(ValueError, match="at least .* and there are 0.00 GiB"):
      (jax.jit(run) if jit else run)(model.params)
  there(None)
  jax.eval_shape(run, model.params)


def test_control_what_fits_runs(there):
  there(GIB)
  assert generate(TABLE, 3).lengths.tolist() == [6, 6]


def test_devices_of_arrays():
  first = jax.devices()[0]
  assert memory.devices_of(np.ones(3), ()) == {first}
  assert memory.devices_of(jnp.ones(3), 2.0) == {first}
  results = []
  jax.jit(lambda x: results.append(memory.devices_of(x)))(1.0)
  assert results == [set(jax.devices())]


def test_memory_of_devices(monkeypatch):
  monkeypatch.setattr(memory, "host_memory", lambda: 5)

  def device(platform, stats, process=0):
    return types.SimpleNamespace(platform=platform, process_index=process,
                                 memory_stats=lambda: stats)

  tpu, cpu = device("tpu", {"bytes_limit": 7}), device("cpu", None)
  assert memory.device_memory([tpu, tpu]) == 14
  assert memory.device_memory([cpu, device("cpu", None)]) == 5
  assert memory.device_memory([cpu, device("cpu", None, 1)]) == 10
  assert memory.device_memory([tpu, device("tpu", None)]) is None


def test_sizes():
  key = jax.random.key(0)
  assert memory.size((np.zeros((2, 3), np.int8), jnp.zeros(4), 1.0, key)) == 22
