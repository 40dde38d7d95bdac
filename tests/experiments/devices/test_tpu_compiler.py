"""Tests of what is compiled for TPUs that are not here.

Most need the compiler of TPUs, which comes with `jax[tpu]`.
"""

import dataclasses
import importlib.util
import json
import types

import pytest

from experiments.app import launch
from experiments.devices import tpu_compiler
from models import checkpoints
from models.text import tokenizers
from support import tiny_models as tiny
from support.helpers import start

NEEDS_COMPILER = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="there is no libtpu")

# JAX must not have been used before a topology is asked for.
_CYCLES = """
import json
from experiments.devices import tpu_compiler
device = tpu_compiler.devices("v5e:2x2")[0]
import jax
from decoding_jax.kernels import linear
from models import transformer
config = transformer.Config(
    vocab_size=8192, dim=4096, num_layers=3, num_heads=32, num_kv_heads=32,
    head_dim=128, hidden_dim=11008, max_length=4096, dtype="bfloat16")
count = lambda tokens: tpu_compiler.forward_cycles(
    config, device, 1, tokens, 512)
found = [count(1), count(8)]
linear._TPU_ROWS = 1
jax.clear_caches()  # Of what was traced with the other tile.
print(json.dumps([*found, count(1)]))
"""
# Cycles with weights of 16 bits and of 8, then bytes that a loop of forwards of
# the latter needs beside its arguments, and those of a layer in 16 bits.
_OF_8_BITS = """
import dataclasses, json
from experiments.devices import device_compiler
from experiments.devices import tpu_compiler
device = tpu_compiler.devices("v6e:2x2")[0]
import jax
import jax.numpy as jnp
from decoding_jax.runtime import cache as cache_lib
from models import transformer
config = transformer.Config(
    vocab_size=8192, dim=4096, num_layers=3, num_heads=32, num_kv_heads=32,
    head_dim=128, hidden_dim=11008, max_length=4096, dtype="bfloat16")
rounded = dataclasses.replace(config, weights="int8")
found = [tpu_compiler.forward_cycles(x, device, 1, 8, 512)
         for x in (config, rounded)]
lm = transformer.language_model(rounded)
where = jax.sharding.SingleDeviceSharding(device)
params = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    transformer.abstract_params(rounded))
def loop(params):
  cache = lm.init_cache(1, 512)
  def step(_, tokens):
    logits, _ = lm.forward(
        params, tokens, tokens, cache, cache_lib.init_block(cache, 8), 0,
        jnp.ones((1, 8, 8), bool))
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
  return jax.lax.fori_loop(0, 9, step, jnp.ones((1, 8), jnp.int32))
compiled = device_compiler.compile_(jax.jit(loop).trace(params))
layer = 2 * (4 * config.dim**2 + 3 * config.dim * config.hidden_dim)
print(json.dumps([*found, compiled.memory_analysis().temp_size_in_bytes,
                  layer]))
"""
# Cycles of a token and of a tree for many rows of a layer, then whether scores
# of the tree and the cache are an array of the program.
_OF_MANY_ROWS = """
import json, re
from experiments.devices import tpu_compiler
device = tpu_compiler.devices("v5p:2x2x1")[0]
from models import transformer
config = transformer.Config(
    vocab_size=1024, dim=1024, num_layers=1, num_heads=8, num_kv_heads=1,
    head_dim=128, hidden_dim=1024, max_length=4096, dtype="bfloat16")
count = lambda tokens: tpu_compiler.forward_cycles(
    config, device, 16, tokens, 2048)
text = tpu_compiler._forward(config, 1, device, 16, 13, 2048).as_text()
print(json.dumps([count(1), count(13),
                  bool(re.search(r"f32[[][0-9,]*13,2048[]]", text))]))
"""
# How many arrays of the size of a layer's keys or of one of its matrices a loop
# over layers makes: of 16 bits, with experts, of 8 bits, and without `sliced`.
_SCANNED = """
import json, math, re
from experiments.devices import device_compiler
from experiments.devices import tpu_compiler
device = tpu_compiler.devices("v5e:2x2")[0]
import jax
import jax.numpy as jnp
from decoding_jax.kernels import linear
from decoding_jax.runtime import cache as cache_lib
from models import transformer
where = jax.sharding.SingleDeviceSharding(device)
def copies(**fields):
  config = transformer.Config(
      vocab_size=1024, dim=1024, num_layers=9, num_heads=8, num_kv_heads=4,
      head_dim=128, hidden_dim=4096, max_length=4096, dtype="bfloat16",
      scan_layers=True, **fields)
  lm = transformer.language_model(config)
  cache = jax.eval_shape(lambda: lm.init_cache(8, 4096))
  ids = jax.ShapeDtypeStruct((8, 4), jnp.int32)
  arguments = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      (transformer.abstract_params(config), ids, cache, jax.eval_shape(
          lambda: cache_lib.init_block(cache, 4))))
  forward = lambda params, ids, cache, block: lm.forward(
      params, ids, ids, cache, block, 0, jnp.ones((8, 4, 4), bool))
  text = device_compiler.compile_(jax.jit(
      forward, donate_argnums=3).trace(*arguments)).as_text()
  sizes = [8 * 4 * 128 * 4096, 1024 * 4096, 4 * 1024 * 4096]
  found = 0
  for name in set(re.findall(r" while[(].*?body=%?([^,]+)", text)):
    body = re.search(f"^%?{re.escape(name)} .*?^}}", text, re.M | re.S)[0]
    for dims, operation in re.findall(
        r"= [(]?[a-z0-9]+[[]([0-9,]+)[]][^ ]* .*?([a-z-]+)[(]", body):
      found += (operation not in ("get-tuple-element", "parameter", "bitcast")
                and math.prod(map(int, dims.split(","))) in sizes)
  return found
found = [copies(), copies(num_experts=4, experts_per_token=2),
         copies(weights="int8")]
dot = linear._dot_sliced
def behind_barrier(x, weights):
  return dot(x, jax.lax.optimization_barrier(weights))
linear._dot_sliced = behind_barrier
jax.clear_caches()  # Of what was traced without it.
print(json.dumps([*found, copies(weights="int8")]))
"""
# Prints how many bytes the program of a method needs beside its arguments.
_METHOD = """
import sys
from experiments.devices import device_compiler
from experiments.devices import tpu_compiler
device = tpu_compiler.devices("v5e:2x2")[0]
import jax
from library import test_lowering as lowering
where = jax.sharding.SingleDeviceSharding(device)
place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
method = lowering.dj.methods.examples()[sys.argv[1]][0]
sampling = lowering.WARP if method.sampled else lowering.dj.Sampling(0.0)
compiled = device_compiler.compile_(
    lowering.traced(method, sampling=sampling, place=place))
print(compiled.memory_analysis().temp_size_in_bytes)
"""


def finished(process, status=0):
  output, errors = process.communicate()
  assert process.returncode == status, errors[-3000:]
  return output, errors


def test_cycles_of_a_kernel_and_of_an_entry():
  text = """
     0   :  { %s0 = sld [smem:[#allocation0]] }
   0x1 LB: > { %s1 = sadd.s32 1, %s2 }
   0x2   : > { %p3 = scmp.ge.s32.totalorder %s1, 4 /* loop exit test */  ;;  \
%4 = sbr.rel (!%p3) target bundleno = 1 (0x1), region = 9 }
   0x3   :  {} /* End region 0 */
"""
  assert tpu_compiler.of_schedule(text) == 2 + 4 * 2
  assert tpu_compiler.of_schedule(text.replace(" LB: >", "   : >")) == 4
  # Of a program they are those of its entry.
  text = """HloModule a
%inner (x: f32[]) -> f32[] {
  %x = f32[] parameter(0), backend_config={"estimated_cycles":"1000"}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %y = f32[2] fusion(%x), calls=%inner, backend_config={"estimated_cycles":"20"}
  ROOT %z = f32[2] negate(%y), backend_config={"estimated_cycles":"3"}
}
"""
  assert tpu_compiler.cycles(types.SimpleNamespace(as_text=lambda: text)) == 23


def test_no_compiler(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(launch.UserError, match=r"--devices=v5e:2x2: the compiler "
                     r"of TPUs is not installed.*pip install 'jax\[tpu\]'"):
    tpu_compiler.devices("v5e:2x2")


@NEEDS_COMPILER
def test_a_token_is_left_to_the_matrix_unit():
  """Control: with one column it is not, and takes twice as many cycles."""
  one, eight, control = json.loads(finished(start("-c", _CYCLES))[0])
  assert one < 1.1 * eight
  assert control > 1.5 * one


@NEEDS_COMPILER
def test_weights_of_8_bits_are_converted_where_they_are_read():
  whole, rounded, temporaries, layer = json.loads(
      finished(start("-c", _OF_8_BITS))[0])
  assert rounded < 0.9 * whole
  assert temporaries < layer / 2


@NEEDS_COMPILER
def test_scanned_layers_are_read_where_they_lie():
  """Weights of 16 and of 8 bits, experts, keys and values: no slice is copied.

  Control: behind a barrier weights of 8 bits are.
  """
  *result, control = json.loads(finished(start("-c", _SCANNED))[0])
  assert not any(result)
  assert control


@NEEDS_COMPILER
def test_scores_of_a_cache_are_not_in_memory():
  one, tree, scores = json.loads(finished(start("-c", _OF_MANY_ROWS))[0])
  assert not scores
  assert tree < 3 * one


@NEEDS_COMPILER
@pytest.mark.parametrize("arguments", [
    ["--method=autoregressive"],
    ["--mesh=data:2,model:2", "--batch=4", "--method=rsd_s(2, 2)"]],
                         ids=["plain", "trees"])
def test_a_generation_is_compiled(arguments):
  output, _ = finished(
      start("-m", "experiments.estimate", "--devices=v5e:2x2",
            "--prompt_length=32", "--max_new_tokens=16",
            "--target=commongen-target", *arguments))
  lines = {line.split("  ")[0]: line.split()[-2:]
           for line in output.splitlines()}
  # Parameters of 4 bytes, on one device or half of them on each of two.
  compiled, estimated = map(float, lines["parameters, prompts"])
  assert 0.9 < compiled / estimated < 1.4
  assert "fits into the 16,384 MiB of a device" in output
  assert lines["target, a token"][1] == "1.000"
  assert float(lines["target, of a step"][1]) > 0.5


@NEEDS_COMPILER
def test_experts_are_compiled_but_not_counted(tmp_path):
  tokenizer = tokenizers.load(launch.model_folder("python-draft"))
  config = dataclasses.replace(tiny.MIXTRAL, dim=256, hidden_dim=256,
                               vocab_size=tokenizer.get_vocab_size())
  checkpoints.to_hf(tmp_path / "experts", config,
                    tiny.random_model(config).params, tokenizer)
  output, _ = finished(
      start("-m", "experiments.estimate", "--devices=v5e:2x2",
            "--mesh=data:2,model:2", "--batch=2", "--prompt_length=32",
            "--max_new_tokens=16", f"--target={tmp_path / 'experts'}",
            "--draft=python-draft"))
  assert "fits into the 16,384 MiB of a device" in output
  assert "how many experts take part depends on the text" in output


@NEEDS_COMPILER
@pytest.mark.parametrize("method", [
    "best_of_n", "cdsl", "rsd_c", "stochastic_beam_search"])
def test_methods_are_compiled(method):
  assert int(finished(start("-c", _METHOD, method))[0]) > 0


@NEEDS_COMPILER
@pytest.mark.parametrize("argument, message", [
    ("--devices=v5e:3x1", "--devices=v5e:3x1 is no topology such as v5e:2x2"),
    ("--mesh=data:8", "--mesh=data:8: 8 devices are needed, there are 4"),
    ("--method=cdsl", "--method=cdsl is steered by a reward")])
def test_mistakes(argument, message):
  _, errors = finished(
      start("-m", "experiments.estimate", "--devices=v5e:2x2", argument), 2)
  assert message in errors
