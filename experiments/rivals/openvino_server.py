"""Generation by OpenVINO GenAI, as a server of `subprocess_server`.

Models are built as optimum-intel exports them (keys and values as states,
`beam_idx`, fused attention), so that its pipelines find their patterns, with
a scale of int8 weights for each output channel. A process has one setting, and
decodes one row at a time. Above temperature 0 its `assisted` is not exact
(version 2026.4.1): `experiments.exactness` finds tokens that the target never
writes, see openvino.genai issue 4190.
"""

import os
import time

import numpy as np
import openvino
from openvino import opset13 as ops
import openvino_genai as genai

from experiments.rivals import llama_files
from experiments.rivals import subprocess_server

_CACHE_GB = 1
# Which no vocabulary has: without a tokenizer none is known to end a text.
_NO_TOKEN = 2**31 - 1


def load(request):
  """Builds the models, and a pipeline of the setting."""
  threads = subprocess_server.threads(request)
  scheduler = genai.SchedulerConfig()
  scheduler.cache_size = _CACHE_GB
  scheduler.enable_prefix_caching = False
  options = {"scheduler_config": scheduler, **_options(
      "f32" if request["weights"] == "float32" else "bf16", threads)}
  if request["setting"] == "assisted":
    dtype = "f32" if request["draft_dtype"] == "float32" else "bf16"
    options["draft_model"] = genai.draft_model(
        _built(request, "draft", request["draft_weights"]), "CPU",
        **_options(dtype, threads))
  if request["setting"] == "lookup":
    options["prompt_lookup"] = True
  pipeline = genai.LLMPipeline(
      _built(request, "target", request["weights"]), "CPU", **options)
  return pipeline, {"threads": threads, "device": "cpu"}


def generate(pipeline, request):
  """Continues one prompt; arguments as in `transformers_server.generate`."""
  [prompt] = request["prompts"]
  config = genai.GenerationConfig()
  config.max_new_tokens, config.ignore_eos = request["max_new_tokens"], True
  config.set_eos_token_id(_NO_TOKEN)
  config.do_sample = request["temperature"] > 0
  if config.do_sample:
    config.temperature = request["temperature"]
    config.top_p, config.min_p = request["top_p"], request["min_p"]
    config.rng_seed = request["seed"]
    config.top_k = request["top_k"] or 2**31 - 1
  if request["setting"] != "plain":
    config.num_assistant_tokens = request["length"]
  if request["setting"] == "lookup":
    config.max_ngram_size = request["ngram"]
  ids = np.array([prompt], np.int64)
  inputs = genai.TokenizedInputs(openvino.Tensor(ids),
                                 openvino.Tensor(np.ones_like(ids)))
  subprocess_server.reset_peak()
  start = time.perf_counter()
  result = pipeline.generate(inputs, config)
  seconds, tokens = time.perf_counter() - start, list(result.tokens[0])
  counts = getattr(result, "extended_perf_metrics", None)
  calls = len(tokens) if request["setting"] == "plain" else (
      counts and len(tokens) - counts.get_num_accepted_tokens())
  return {"tokens": [tokens], "seconds": seconds, "target_calls": calls,
          "peak_bytes": subprocess_server.peak_memory()}


def _options(dtype, threads):
  return {"INFERENCE_PRECISION_HINT": dtype, "INFERENCE_NUM_THREADS": threads,
          "KV_CACHE_PRECISION": dtype}


def _built(request, side, weights):
  folder = os.path.join(request["folder"], f"openvino-{side}-{weights}")
  path = os.path.join(folder, "openvino_model.xml")
  if not os.path.exists(path):
    os.makedirs(folder, exist_ok=True)
    openvino.save_model(_no_tokenizer(),
                        os.path.join(folder, "openvino_tokenizer.xml"))
    openvino.save_model(build(request[side], weights == "int8"), path,
                        compress_to_fp16=False)
  return folder


def _no_tokenizer():
  """Returns a tokenizer that makes token 0 of any text: it is compared only."""
  text = ops.parameter([-1], openvino.Type.string, name="text")
  results = []
  for name, value in (("input_ids", 0), ("attention_mask", 1)):
    result = ops.result(ops.constant(np.full((1, 1), value)), name=name)
    result.output(0).get_tensor().set_names({name})
    results.append(result)
  return openvino.Model(results, [text], "tokenizer")


def build(folder, eight_bits):
  """Returns a Llama as an `openvino.Model`, perhaps with int8 matrices."""
  config, weights = llama_files.config(folder), llama_files.tensors(folder)
  matrix = _matrix_8 if eight_bits else ops.constant
  ids, mask, positions, beams = inputs = [
      ops.parameter(shape, dtype, name=name) for name, dtype, shape in (
          ("input_ids", np.int64, [-1, -1]),
          ("attention_mask", np.int64, [-1, -1]),
          ("position_ids", np.int64, [-1, -1]), ("beam_idx", np.int32, [-1]))]
  for node in inputs:
    node.output(0).get_tensor().set_names({node.friendly_name})
  x = ops.gather(ops.constant(weights["model.embed_tokens.weight"]), ids, 0)
  rotary, sinks = _rotary(config, positions), []
  visible = _visible(mask, positions)
  for i in range(config["num_hidden_layers"]):
    def dense(y, name, at=f"model.layers.{i}."):
      return ops.matmul(y, matrix(weights[f"{at}{name}.weight"]), False, True)

    def norm(y, name, at=f"model.layers.{i}."):
      return _norm(y, weights[f"{at}{name}.weight"], config["rms_norm_eps"])

    y = norm(x, "input_layernorm")
    query, key, value = (dense(y, f"self_attn.{part}_proj") for part in "qkv")
    seen = _attention(config, i, query, key, value, rotary, visible, beams, ids,
                      sinks)
    x = ops.add(x, dense(seen, "self_attn.o_proj"))
    y = norm(x, "post_attention_layernorm")
    y = ops.multiply(ops.swish(dense(y, "mlp.gate_proj")),
                     dense(y, "mlp.up_proj"))
    x = ops.add(x, dense(y, "mlp.down_proj"))
  x = _norm(x, weights["model.norm.weight"], config["rms_norm_eps"])
  logits = ops.matmul(x, matrix(weights["lm_head.weight"]), False, True)
  result = ops.result(logits, name="logits")
  result.output(0).get_tensor().set_names({"logits"})
  return openvino.Model([result], sinks, inputs, "llama")


def _matrix_8(x):
  scale = np.maximum(np.abs(x).max(axis=1, keepdims=True) / 127, 1e-30)
  values = np.rint(x / scale).astype(np.int8)
  return ops.multiply(ops.convert(ops.constant(values), np.float32),
                      ops.constant(scale.astype(np.float32)))


def _norm(x, scale, epsilon):
  square = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), True)
  root = ops.sqrt(ops.add(square, np.float32(epsilon)))
  return ops.multiply(ops.constant(scale.reshape(1, 1, -1)),
                      ops.multiply(x, ops.divide(np.float32(1), root)))


def _rotary(config, positions):
  """Returns cosine and sine `[B, 1, T, head_dim]` of the angles."""
  size = config["head_dim"]
  wavelengths = config["rope_theta"]**(
      -np.arange(0, size, 2, dtype=np.float64) / size)
  angles = ops.multiply(
      ops.convert(ops.unsqueeze(positions, np.array([1, 3])), np.float32),
      ops.constant(wavelengths.astype(np.float32).reshape(1, 1, 1, -1)))
  angles = ops.concat([angles, angles], -1)
  return ops.cos(angles), ops.sin(angles)


def _visible(mask, positions):
  """Returns `[B, 1, T, S]`, which slots each token sees."""
  count = ops.gather(ops.shape_of(mask), np.array(1), np.array(0))
  slots = ops.range(np.int64(0), count, np.int64(1), "i64")
  return ops.less_equal(ops.unsqueeze(slots, np.array([0, 1, 2])),
                        ops.unsqueeze(positions, np.array([1, 3])))


def _attention(config, layer, query, key, value, rotary, visible, beams, ids,
               sinks):
  """Returns what the heads read, and appends the new states to `sinks`."""
  heads, kv_heads, size = (config[x] for x in (
      "num_attention_heads", "num_key_value_heads", "head_dim"))

  def split(y, count):
    shape = ops.constant(np.array([0, 0, count, size]))
    return ops.transpose(ops.reshape(y, shape, True), np.array([0, 2, 1, 3]))

  query = _rotated(split(query, heads), rotary, size)
  fresh = (_rotated(split(key, kv_heads), rotary, size), split(value, kv_heads))
  batch = ops.gather(ops.shape_of(ids), np.array([0]), np.array(0))
  none = ops.broadcast(np.float32(0), ops.concat(
      [batch, np.array([kv_heads, 0, size])], 0))
  both = []
  for part, new in zip(("key", "value"), fresh):
    name = f"past_key_values.{layer}.{part}present.{layer}.{part}"
    past = ops.read_value(none, name, np.float32, [-1, kv_heads, -1, size])
    whole = ops.concat([ops.gather(past, beams, np.array(0)), new], 2)
    sinks.append(ops.assign(whole, name))
    both.append(_repeated(whole, heads // kv_heads, heads, size))
  seen = ops.scaled_dot_product_attention(query, *both, visible)
  seen = ops.transpose(seen, np.array([0, 2, 1, 3]))
  return ops.reshape(seen, np.array([0, 0, heads * size]), True)


def _rotated(x, rotary, size):
  first, second = (
      ops.slice(x, np.array([start]), np.array([end]), np.array([1]),
                np.array([3]))
      for start, end in ((0, size // 2), (size // 2, 2**31 - 1)))
  turned = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
  return ops.add(ops.multiply(x, rotary[0]), ops.multiply(turned, rotary[1]))


def _repeated(x, times, heads, size):
  """Repeats heads of keys or values for the queries that share them."""
  if times == 1:
    return x
  shape = ops.shape_of(x)
  wide = ops.concat([ops.gather(shape, np.array([0, 1]), np.array(0)),
                     np.array([times]),
                     ops.gather(shape, np.array([2, 3]), np.array(0))], 0)
  x = ops.broadcast(ops.unsqueeze(x, np.array([2])), wide, "BIDIRECTIONAL")
  return ops.reshape(x, np.array([0, heads, -1, size]), True)


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
