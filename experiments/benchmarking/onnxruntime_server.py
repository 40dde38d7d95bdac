"""Generation by ONNX Runtime GenAI, as a server of `subprocess_server`.

Models are built of the operations that its model builder uses on CPUs: fused
attention with rotary embeddings and, with fewer bits, products by blocks of 32
weights. It has one setting, plain, and no 16 bits on CPUs. Some token must end
texts: the vocabulary gets one more, which is suppressed.
"""

import json
import os
import time

import numpy as np
import onnx
from onnx import helper
from onnx import numpy_helper
import onnxruntime_genai as genai

from experiments.app import peak_memory
from experiments.benchmarking import llama_files
from experiments.benchmarking import subprocess_server

_BITS = {"float32": 0, "int8": 8, "int4": 4}
_BLOCK = 32
_CONTRIB = "com.microsoft"
_MODEL = "model.onnx"


def load(request):
  """Builds the model, unless it is there, and loads it.

  Args:
    request: `target`, a folder; its `weights`; `threads`, or 0 for all cores;
      `folder` for the built model.

  Returns:
    The model, and an answer with threads and the device.
  """
  threads = subprocess_server.threads(request)
  folder = os.path.join(request["folder"], f"onnxruntime-{request['weights']}")
  if not os.path.exists(os.path.join(folder, _MODEL)):
    os.makedirs(folder, exist_ok=True)
    onnx.save(build(request["target"], _BITS[request["weights"]]),
              os.path.join(folder, _MODEL), save_as_external_data=True,
              location="model.data")
  with open(os.path.join(folder, "genai_config.json"), "w",
            encoding="utf-8") as f:
    json.dump(_description(llama_files.config(request["target"]), threads), f)
  return genai.Model(folder), {"threads": threads, "device": "cpu"}


def generate(model, request):
  """Continues prompts; arguments as of `transformers_server.generate`.

  Raises:
    ValueError: for min-p, which this engine lacks.
  """
  subprocess_server.check_no_min_p(request)
  prompts = np.array(request["prompts"], np.int32)
  params = genai.GeneratorParams(model)
  length = prompts.shape[1] + request["max_new_tokens"]
  options = {"do_sample": False}
  if request["temperature"]:
    options = {"do_sample": True, "temperature": request["temperature"],
               "top_k": request["top_k"], "top_p": request["top_p"],
               "random_seed": request["seed"]}
  params.set_search_options(min_length=length, max_length=length,
                            batch_size=len(prompts), **options)
  peak_memory.reset()
  start = time.perf_counter()
  generator = genai.Generator(model, params)
  generator.append_tokens(prompts)
  while not generator.is_done():
    generator.generate_next_token()
  tokens = [generator.get_sequence(i)[prompts.shape[1]:].tolist()
            for i in range(len(prompts))]
  return {"tokens": tokens, "seconds": time.perf_counter() - start,
          "target_calls": len(tokens[0]), "peak_bytes": peak_memory.peak()}


def build(folder, bits):
  """Returns a Llama as an ONNX model.

  Args:
    folder: of the model, see `llama_files`.
    bits: of the matrices' weights, 8 or 4; 0 for float32.
  """
  config, weights = llama_files.config(folder), llama_files.tensors(folder)
  graph = _Graph(bits)
  layers, heads, size = (config[x] for x in (
      "num_hidden_layers", "num_key_value_heads", "head_dim"))
  cos, sin = _rotary(config)
  sizes = {"cos": cos, "sin": sin, "one": np.array(1, np.int64),
           "axis": np.array([1], np.int64)}
  for name, x in sizes.items():
    graph.constant(name, x)
  graph.node("ReduceSum", ["attention_mask", "axis"], "count", keepdims=0)
  graph.node("Sub", ["count", "one"], "last")
  graph.node("Cast", ["last"], "last_32", to=onnx.TensorProto.INT32)
  graph.node("Shape", ["attention_mask"], "shape")
  graph.node("Gather", ["shape", "one"], "total")
  graph.node("Cast", ["total"], "total_32", to=onnx.TensorProto.INT32)
  graph.constant("embedding", _with_end(weights["model.embed_tokens.weight"]))
  x = graph.node("Gather", ["embedding", "input_ids"], "embedded")
  for i in range(layers):
    x = _layer(graph, config, weights, i, x)
  x = graph.norm(x, weights["model.norm.weight"], config, "norm")
  graph.product(x, _with_end(weights["lm_head.weight"]), "logits")
  past = ["batch", heads, "past", size]
  inputs = [("input_ids", onnx.TensorProto.INT64, ["batch", "fresh"]),
            ("attention_mask", onnx.TensorProto.INT64, ["batch", "all"])]
  outputs = [("logits", onnx.TensorProto.FLOAT,
              ["batch", "fresh", config["vocab_size"] + 1])]
  for i in range(layers):
    for part in ("key", "value"):
      inputs.append((f"past_key_values.{i}.{part}", onnx.TensorProto.FLOAT,
                     past))
      outputs.append((f"present.{i}.{part}", onnx.TensorProto.FLOAT,
                      [*past[:2], "all", size]))
  return helper.make_model(
      helper.make_graph(
          graph.nodes, "llama",
          *([helper.make_tensor_value_info(*x) for x in part]
            for part in (inputs, outputs)), graph.constants),
      opset_imports=[helper.make_opsetid("", 18),
                     helper.make_opsetid(_CONTRIB, 1)], ir_version=10)


def _with_end(rows):
  """Appends the row of the token that would end a text."""
  return np.pad(rows, ((0, 1), (0, 0)))


class _Graph:
  """Nodes and constants of a model in the making."""

  def __init__(self, bits):
    self.bits, self.nodes, self.constants = bits, [], []

  def constant(self, name, x):
    self.constants.append(numpy_helper.from_array(x, name))
    return name

  def node(self, kind, inputs, *outputs, domain="", **attributes):
    self.nodes.append(helper.make_node(kind, inputs, list(outputs),
                                       name=outputs[0], domain=domain,
                                       **attributes))
    return outputs[0]

  def norm(self, x, scale, config, name):
    scale = self.constant(f"{name}.scale", scale)
    return self.node("SimplifiedLayerNormalization", [x, scale], name, axis=-1,
                     epsilon=config["rms_norm_eps"], stash_type=1)

  def product(self, x, matrix, name):
    """Appends a product with a matrix `[out, in]`."""
    out, width = matrix.shape
    if not self.bits:
      weight = self.constant(f"{name}.weight", np.ascontiguousarray(matrix.T))
      return self.node("MatMul", [x, weight], name)
    values, scales = _quantized(matrix, self.bits)
    return self.node(
        "MatMulNBits",
        [x, self.constant(f"{name}.values", values),
         self.constant(f"{name}.scales", scales)], name, domain=_CONTRIB,
        K=width, N=out, bits=self.bits, block_size=_BLOCK, accuracy_level=4)


def _layer(graph, config, weights, i, x):
  """Appends a layer; returns the name of its output."""
  def dense(y, name):
    return graph.product(y, weights[f"model.layers.{i}.{name}.weight"],
                         f"{i}.{name}")

  def norm(y, name):
    return graph.norm(y, weights[f"model.layers.{i}.{name}.weight"], config,
                      f"{i}.{name}")

  y = norm(x, "input_layernorm")
  past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
  seen = graph.node(
      "GroupQueryAttention",
      [*(dense(y, f"self_attn.{part}_proj") for part in "qkv"), *past,
       "last_32", "total_32", "cos", "sin"],
      f"{i}.attention", f"present.{i}.key", f"present.{i}.value",
      domain=_CONTRIB, num_heads=config["num_attention_heads"],
      kv_num_heads=config["num_key_value_heads"], do_rotary=1)
  x = graph.node("Add", [x, dense(seen, "self_attn.o_proj")], f"{i}.attended")
  y = norm(x, "post_attention_layernorm")
  gate = dense(y, "mlp.gate_proj")
  gate = graph.node("Mul", [gate, graph.node("Sigmoid", [gate],
                                             f"{i}.sigmoid")], f"{i}.silu")
  y = graph.node("Mul", [gate, dense(y, "mlp.up_proj")], f"{i}.gated")
  return graph.node("Add", [x, dense(y, "mlp.down_proj")], f"{i}.output")


def _quantized(matrix, bits):
  """Returns `[out, blocks, bytes]` uint8 and `[out * blocks]` scales."""
  blocks = matrix.reshape(len(matrix), -1, _BLOCK)
  middle = 2**(bits - 1)
  scales = np.abs(blocks).max(axis=-1, keepdims=True) / (middle - 1)
  scales = np.maximum(scales, 1e-30).astype(np.float32)
  values = (np.rint(blocks / scales) + middle).astype(np.uint8)
  if bits == 4:
    values = values[..., ::2] | values[..., 1::2] << 4
  return values, scales.reshape(-1)


def _rotary(config):
  """Returns cosines and sines `[positions, head_dim / 2]`."""
  size = config["head_dim"]
  wavelengths = config["rope_theta"]**(-np.arange(0, size, 2) / size)
  angles = np.arange(config["max_position_embeddings"])[:, None] * wavelengths
  return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _description(config, threads):
  """Returns what the engine must know of the model."""
  return {
      "model": {
          "type": "llama", "vocab_size": config["vocab_size"] + 1,
          "context_length": config["max_position_embeddings"],
          # Padding is masked, and would be wherever a prompt has that token.
          **{f"{x}_token_id": config["vocab_size"]
             for x in ("bos", "eos", "pad")},
          "decoder": {
              "session_options": {"intra_op_num_threads": threads,
                                  "provider_options": []},
              "filename": _MODEL, "head_size": config["head_dim"],
              "hidden_size": config["hidden_size"],
              "num_attention_heads": config["num_attention_heads"],
              "num_key_value_heads": config["num_key_value_heads"],
              "num_hidden_layers": config["num_hidden_layers"],
              "inputs": {"input_ids": "input_ids",
                         "attention_mask": "attention_mask",
                         "past_key_names": "past_key_values.%d.key",
                         "past_value_names": "past_key_values.%d.value"},
              "outputs": {"logits": "logits",
                          "present_key_names": "present.%d.key",
                          "present_value_names": "present.%d.value"}}},
      "search": {"past_present_share_buffer": True}}


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
