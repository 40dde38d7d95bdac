"""Programs for TPUs and GPUs, as they are handed to compilers not there.

A program is lowered for a platform without having it; what is read is its
StableHLO. It has nothing that belongs to a CPU or to the host, nothing of 64
bits, no sort of a vocabulary, and no product in which float32 loses digits.
"""

import dataclasses
import functools

import jax
from jax.extend.mlir import ir
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
import numpy as np
import pytest

from decoding_jax import kernels
import decoding_jax as dj
from decoding_jax.kernels import dispatch, dot_product_attention
from decoding_jax.speculation import tree_decoder
from decoding_jax.validation import memory
from configs import train as configs
from experiments.app import launch
from experiments.data import batches
from experiments.devices import mesh as mesh_lib, model_pair
from experiments.training import steps as training_steps
from models import transformer
from models.transformer import sharding
from support import tiny_models as tiny
from support.example_methods import each

PLATFORMS = ("tpu", "cuda")
# A size that no other axis has, and large enough for a top-k by blocks.
VOCAB = 2048
BATCH, WIDTH, NEW, STATES = 2, 5, 8, 3
LLAMA = dataclasses.replace(tiny.LLAMA, vocab_size=VOCAB, num_layers=1)
GEMMA = dataclasses.replace(tiny.GEMMA, vocab_size=VOCAB, dtype="bfloat16",
                            scan_layers=True)
RSD_S = dj.methods.rsd_s(3, 2)
PLAIN = dj.methods.autoregressive()
WARP = dj.Sampling(0.8, top_k=7, top_p=0.9, min_p=0.1)


def shape(*axes, dtype=jnp.int32):
  return jax.ShapeDtypeStruct(axes, dtype)


def traced(method, config=LLAMA, *, sampling=dj.Sampling(), batch=BATCH,
           rewarded=False, apply=lambda *model: model, place=lambda x: x,
           **kwargs):
  """A whole generation, in which the model is its own drafter."""
  kind = tree_decoder.as_decoder(
      method.sampled if sampling.temperature else method.greedy)
  lm = transformer.language_model(config)
  if rewarded or kind.needs_reward:
    kwargs["reward"] = tiny.table_reward(1.0)
  scores = shape(batch, tiny.STATES, dtype=jnp.float32)

  def run(key, prompts, lengths, params, factor, scores):
    model, params = apply(lm, params)
    values = dict(reward_params=factor, constraints=scores)
    return dj.generate(
        key, prompts, lengths, method=method, target=model,
        target_params=params, draft=model if kind.needs_draft else None,
        draft_params=params if kind.needs_draft else None, max_new_tokens=NEW,
        sampling=sampling, eos_id=0, **kwargs,
        **values if "reward" in kwargs else {})

  return jax.jit(run).trace(*jax.tree.map(place, (
      jax.eval_shape(lambda: jax.random.key(0)), shape(batch, WIDTH),
      shape(batch), transformer.abstract_params(config),
      shape(dtype=jnp.float32), scores)))


def operations(lowered):
  """All operations of a program, those of inner ones included."""
  results = []

  def visit(operation):
    results.append(operation)
    return ir.WalkResult.ADVANCE

  lowered.compiler_ir("stablehlo").operation.walk(visit)
  return results


def fault(operation):
  """What an accelerator should not be given, or None."""
  name = operation.name.rpartition(".")[2]
  types = [str(x.type) for x in (*operation.operands, *operation.results)]
  if name in ("infeed", "outfeed", "send", "recv"):
    return f"{name}: the host"
  if name == "custom_call":
    return f"custom_call of {operation.attributes['call_target_name']}"
  # Generators of JAX count in 64 bits, which is nothing but a constant.
  wide = [x for x in types if "f64" in x or "xi64" in x or "<i64" in x]
  if wide and not name == "constant":
    return f"{name} of {wide[0]}"
  if name == "sort" and any(f"{VOCAB}x" in x for x in types):
    return f"sort of {types[0]}"
  if name == "dot_general" and "f32>" in types[0] and (
      "HIGHEST" not in str(operation.attributes["precision_config"])):
    return f"dot_general of {types[0]} without all digits"
  return None


def faults(program):
  """Those of a traced program: a set of strings."""
  lowered = program.lower(lowering_platforms=PLATFORMS)
  return set(filter(None, map(fault, operations(lowered))))


def methods():
  """Returns the examples of all methods."""
  return [method for result in dj.methods.examples().values()
          for method in result]


@pytest.mark.cases(4)
@each(methods())
def test_methods(method):
  """Of a target that keeps hidden states, which some methods read."""
  keep = lambda lm, params: (transformer.with_features(LLAMA, (0,)), params)
  sampling = WARP if method.sampled else dj.Sampling(0.0)
  results = faults(traced(method, sampling=sampling, apply=keep))
  if "gbv" in method.name:  # It orders the vocabulary by a ratio.
    results = {x for x in results if not x.startswith("sort of")}
  assert not results


def test_greedy_weights_of_8_bits_and_rows_that_make_room_for_others():
  for program in (traced(RSD_S, sampling=dj.Sampling(0.0)),
                  traced(RSD_S, dataclasses.replace(LLAMA, weights="int8")),
                  traced(RSD_S, batch=4, rows=2)):
    assert not faults(program)


def test_logits_processors():
  following = np.zeros((STATES, VOCAB), int)
  machine = dj.processors.table(following)
  one = dj.processors.chain((dj.processors.automaton(),
                             dj.processors.min_new_tokens(2, 0)))
  other = dj.processors.chain((
      dj.processors.repetition_penalty(1.2, VOCAB),
      dj.processors.no_repeat_ngram(3, VOCAB, WIDTH + NEW)))
  third = dj.processors.occurrence_penalty(0.5, 0.5, VOCAB, NEW)

  def apply(lm, params):
    lm, params = dj.processors.apply(one, (machine, ()), lm, params)
    lm, params = dj.processors.apply(other, ((), ()), lm, params)
    return dj.processors.apply(third, (), lm, params)

  assert not faults(traced(RSD_S, apply=apply))


def test_rewards_of_texts():
  pieces = [bytes([i % 256]) for i in range(VOCAB)]
  reward = dj.constraints.lexical()
  words = dj.constraints.vocabulary(pieces)
  constraint = dj.constraints.concepts([[["dog"]]] * BATCH, pieces)

  def value(constraint, tokens, lengths):
    def row(constraint, tokens, length):
      state = reward.init(words, constraint, tokens[:1], 1)
      state = reward.advance(words, constraint, state, tokens,
                             jnp.arange(WIDTH) < length)
      return reward.value(words, constraint, state)

    return jax.vmap(row)(constraint, tokens, lengths)

  assert not faults(jax.jit(value).trace(constraint, shape(BATCH, WIDTH),
                                         shape(BATCH)))


def test_native_kernels_are_left_out():
  """Control: on a CPU they are called, if they are there."""
  for config in (GEMMA, LLAMA):
    program = traced(PLAIN, config, batch=1)
    assert not faults(program)
    called = any("custom_call" in (fault(operation) or "") for operation in
                 operations(program.lower(lowering_platforms=("cpu",))))
    assert called == kernels.available()


def found_on(platform, program, is_one):
  """How many operations of the program for a platform are such ones."""
  return sum(map(is_one, operations(program.lower(
      lowering_platforms=(platform,)))))


def test_no_products_of_one_row_on_a_tpu():
  """They are not left to its matrix unit; control: elsewhere there are some."""
  program = traced(PLAIN, batch=1)
  is_one = lambda operation: operation.name == "stablehlo.dot_general" and (
      operation.results[0].type.shape[:-1] == [1])
  assert not found_on("tpu", program, is_one)
  assert found_on("cuda", program, is_one)


def test_equal_layers_are_one_function():
  """Control: layers with and without a window are two."""
  def functions(**fields):
    config = dataclasses.replace(LLAMA, num_layers=4, **fields)
    program = jax.jit(transformer.causal_logits, static_argnums=0).trace(
        transformer.language_model(config), transformer.abstract_params(config),
        shape(1, 3))
    return found_on("tpu", program, lambda x: x.name == "func.func" and (
        x.attributes["sym_name"].value.startswith("core_fn")))  # Of nn.jit.

  assert functions() == 1
  assert functions(window=2, full_every=2) == 2


def test_products_of_heads_share_no_factor_on_a_gpu():
  """XLA would make one of two; control: other devices take the same queries."""
  program = traced(RSD_S)
  others = lambda operation: (
      operation.name == "stablehlo.optimization_barrier"
      and operation.results[0].type.rank == 5)
  # The root and the level below it are drafted, and a tree is scored.
  assert found_on("cuda", program, others) == 3 * LLAMA.num_layers
  assert not found_on("tpu", program, others)


def test_a_cache_is_read_by_a_kernel_on_a_tpu(monkeypatch, request):
  """Also by the devices of a mesh, each of which has some of the heads."""
  monkeypatch.setattr(dispatch, "_ahead", set())
  monkeypatch.setattr(dot_product_attention, "_FEW", 0)
  request.addfinalizer(jax.clear_caches)
  for name in ("tpu", "gpu"):
    dispatch.compile_for(name)
  config = dataclasses.replace(LLAMA, hidden_dim=2 * LLAMA.hidden_dim)
  expected = {'custom_call of "tpu_custom_call"'}
  program = traced(PLAIN, config)
  actual = lambda program, platform: set(filter(None, map(fault, operations(
      program.lower(lowering_platforms=(platform,))))))
  assert actual(program, "tpu") == expected
  assert not actual(program, "cuda")
  for heads in (config.num_kv_heads, 1):
    program = _on_a_mesh(dataclasses.replace(config, num_kv_heads=heads), PLAIN)
    assert actual(program(device_bytes=2**30), "tpu") == expected


def test_other_digits_for_whom_asks_for_them():
  with jax.default_matmul_precision("tensorfloat32"):
    result = faults(traced(PLAIN))
  assert result and all("without all digits" in x for x in result)


@pytest.mark.parametrize("optimizer, rounds", [
    ("adamw", False), ("muon", True)])
def test_training(optimizer, rounds):
  config = configs.get_config("smoke")
  config.optimizer = optimizer
  objective = training_steps.objective(
      training_steps.LANGUAGE, transformer.language_model(LLAMA))
  batch = batches.Batch(shape(BATCH, 9), shape(BATCH, 8, dtype=jnp.float32))
  result = faults(training_steps.make_step(config, objective).trace(
      jax.eval_shape(lambda: training_steps.init(config, LLAMA)), batch))
  assert bool(result) == rounds
  assert all("without all digits" in x for x in result)


def _on_a_mesh(config, method=RSD_S):
  """Returns a function that traces a generation on four times two devices."""
  mesh = AbstractMesh((4, 2), (sharding.DATA, sharding.MODEL),
                      axis_types=(AxisType.Auto,) * 2)
  lm = sharding.language_model(transformer.language_model(config))
  params = mesh_lib.stand_ins(None, config, sharding.shardings(config, mesh))
  pair = model_pair.ModelPair(lm, params, lm, params, None, 1.0, None, mesh)
  return functools.partial(mesh_lib.trace, pair, 8, WIDTH, method=method,
                           max_new_tokens=NEW, sampling=dj.Sampling())


def test_on_a_mesh(monkeypatch):
  monkeypatch.setattr(memory, "host_memory", lambda: 1)
  trace = _on_a_mesh(LLAMA)
  with pytest.raises(launch.UserError, match="needs at least .* there are "):
    trace(device_bytes=1000)
  assert not faults(trace(device_bytes=2**30))
  # Slots are split where heads cannot be.
  config = dataclasses.replace(LLAMA, num_kv_heads=1)
  assert not faults(_on_a_mesh(config)(device_bytes=2**30))


@pytest.mark.parametrize("function, message", [
    (lambda x: x @ x.T, "dot_general of tensor<2x2048xf32> without all digits"),
    (jnp.sort, "sort of tensor<2x2048xf32>"),
    (jnp.linalg.svd, "custom_call of"),
    (lambda x: x.astype(jnp.float64) + 1, "f64")])
def test_control_what_does_not_belong_there_is_seen(function, message):
  with jax.enable_x64(message == "f64"):
    program = jax.jit(function).trace(shape(2, VOCAB, dtype=jnp.float32))
    assert any(message in x for x in faults(program))


def test_control_what_calls_the_host_is_refused():
  call = lambda x: jax.pure_callback(lambda x: x, x, x)
  with pytest.raises(NotImplementedError, match="callback"):
    faults(jax.jit(call).trace(shape(2)))
