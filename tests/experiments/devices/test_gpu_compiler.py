"""Tests of what is compiled for GPUs that are not here.

Some need the compiler of GPUs, which comes with `jax[cuda13]`.
"""

import importlib.util
import math
import re
import types

import jax
import pytest

from experiments.app import launch
from experiments.devices import device_compiler, gpu_compiler, hlo_kernels
from support.helpers import start

NEEDS_COMPILER = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="there is no jax_cuda13_plugin")
# A loop of two kernels: a row of a table is read, and a slot is written in
# place. Of the product's result, four bytes are scratch memory.
PROGRAM = """HloModule a
%take (p.0: f32[100,8], p.1: s32[]) -> f32[1,8] {
  %p.0 = f32[100,8]{1,0} parameter(0)
  %b = f32[100,8]{1,0} bitcast(%p.0)
  %p.1 = s32[] parameter(1)
  ROOT %slice = f32[1,8]{1,0} dynamic-slice(%b, %p.1, %p.1), slice_sizes={1,8}
}
%put (p.2: f32[64,8], p.3: f32[1,8], p.4: s32[]) -> f32[64,8] {
  %p.2 = f32[64,8]{1,0} parameter(0)
  %p.3 = f32[1,8]{1,0} parameter(1)
  %p.4 = s32[] parameter(2)
  ROOT %put.1 = f32[64,8]{1,0} dynamic-update-slice(%p.2, %p.3, %p.4, %p.4)
}
%body (x: (f32[100,8], f32[64,8], s32[])) -> (f32[100,8], f32[64,8], s32[]) {
  %x = (f32[100,8]{1,0}, f32[64,8]{1,0}, s32[]) parameter(0)
  %table = f32[100,8]{1,0} get-tuple-element(%x), index=0
  %cache = f32[64,8]{1,0} get-tuple-element(%x), index=1
  %i = s32[] get-tuple-element(%x), index=2
  %row = f32[1,8]{1,0} fusion(%table, %i), kind=kLoop, calls=%take
  %all = f32[64,8]{1,0} fusion(%cache, %row, %i), kind=kLoop, calls=%put
  ROOT %out = (f32[100,8]{1,0}, f32[64,8]{1,0}, s32[]) tuple(%table, %all, %i)
}

ENTRY %main (x.1: (f32[100,8], f32[64,8], s32[])) -> f32[4] {
  %x.1 = (f32[100,8]{1,0}, f32[64,8]{1,0}, s32[]) parameter(0)
  %loop = (f32[100,8]{1,0}, f32[64,8]{1,0}, s32[]) while(%x.1), body=%body
  %y = f32[4]{0} constant({...})
  %dot = (f32[4]{0}, s8[4]{0}) custom-call(%y, %y), custom_call_target="dot"
  ROOT %z = f32[4]{0} get-tuple-element(%dot), index=0
}
"""


def test_a_step_is_the_loop_that_reads_the_most():
  kernels = hlo_kernels.of_step(PROGRAM)
  # A row and its index are read, the row is written; then that row and the
  # index are read, and a slot is written.
  assert [(x.name, x.num_bytes) for x in kernels] == [
      ("row", 32 + 4 + 32), ("all", 32 + 4 + 32)]
  # Without a loop there is no step.
  assert not hlo_kernels.of_step(PROGRAM.replace(" while(", " call("))


@pytest.mark.parametrize("name, memory", [
    ("h100:8", 79 * 2**30), ("H100:1x1", 79 * 2**30), ("h200:1", 139 * 2**30),
    ("v5e:2x2", None), ("h100", None), ("a100:1", None)])
def test_names(name, memory):
  gpu = gpu_compiler.model(name)
  assert (gpu and gpu.memory) == memory


def test_no_compiler(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(launch.UserError, match="--devices=h100:1: the compiler "
                     r"of GPUs is not installed.*pip install 'jax\[cuda13\]'"):
    gpu_compiler.devices("h100:1")


def test_products_without_a_tile_are_left_to_cublas():
  class Lowered:
    def compile(self, options=None):
      if options:
        return options
      raise jax.errors.JaxRuntimeError(
          "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot")

  result = device_compiler.compile_(
      types.SimpleNamespace(lower=lambda lowering_platforms: Lowered()), "cuda")
  assert result == {"xla_gpu_enable_triton_gemm": False}


# Prints the program of a method of trees for a GPU, in 16 bits.
_PROGRAM = """
from experiments.devices import device_compiler, gpu_compiler
device = gpu_compiler.devices("h100:1")[0]
import dataclasses
import jax
import decoding_jax as dj
from models import transformer
config = transformer.Config(
    vocab_size=8192, dim=512, num_layers=2, num_heads=4, num_kv_heads=4,
    head_dim=128, hidden_dim=1024, max_length=4096, dtype="bfloat16")
lm = transformer.language_model(config)
where = jax.sharding.SingleDeviceSharding(device)
place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
params = jax.tree.map(place, transformer.abstract_params(config))
keys = place(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1)))
prompts, lengths = (jax.ShapeDtypeStruct(x, "int32", sharding=where)
                    for x in ((1, 64), (1,)))
def run(params, *prompts):
  return dj.generate(
      *prompts, method=dj.methods.rsd_s(2, 2), target=lm, draft=lm,
      target_params=params, draft_params=params, max_new_tokens=960)
traced = jax.jit(run).trace(params, keys, prompts, lengths)
print(device_compiler.compile_(traced, "cuda").as_text())
"""


@NEEDS_COMPILER
def test_a_step_on_a_gpu():
  output, errors = start("-c", _PROGRAM).communicate()
  kernels = hlo_kernels.of_step(output)
  assert kernels, errors[-3000:]
  # What of a cache is copied would be as large as a cache: 1,000 slots.
  cache = 1_000 * 512 * 2
  assert not [x for x in kernels if x.opcode == "copy" and x.num_bytes > cache]
  # No weights are converted as a whole: the least matrix has 512 x 512 numbers.
  # Logits of five nodes have 5 x 8,192.
  widened = [x for x in kernels
             for axes in re.findall(r"f32\[([\d,]+)\]", x.shape)
             if math.prod(map(int, axes.split(","))) >= 512 * 512]
  assert not widened


@NEEDS_COMPILER
def test_a_generation_is_compiled():
  output, errors = start(
      "-m", "experiments.estimate", "--devices=h100:1", "--prompt_length=32",
      "--max_new_tokens=16", "--target=commongen-target",
      "--method=rsd_s(2, 2)").communicate()
  assert "fits into the 80,896 MiB of a device" in output, errors[-3000:]
  moved, weights = (
      float(re.search(rf"^{name}.* ([\d.]+) +[\d.]+$", output, re.M)[1])
      for name in ("read and written", "weights, once"))
  assert weights < moved < 5 * weights
