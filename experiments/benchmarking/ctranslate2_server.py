"""Generation by CTranslate2, as a server of `subprocess_server`.

It has one setting, plain. On CPUs it computes in no 16 bits; weights of 8 bits
are of its own rounding, with activations in 8 bits, too, within products.
"""

import os
import time

import ctranslate2
from ctranslate2 import specs
import numpy as np

from experiments.app import peak_memory
from experiments.benchmarking import llama_files
from experiments.benchmarking import subprocess_server

_COMPUTE = {"float32": "float32", "int8": "int8_float32"}


def load(request):
  """Builds the model, unless it is there, and loads it.

  Args:
    request: `target`, a folder; its `weights`; `threads`, or 0 for all cores;
      `folder` for the built model.

  Returns:
    The generator, and an answer with threads and the device.
  """
  threads = subprocess_server.threads(request)
  folder = os.path.join(request["folder"], "ctranslate2")
  if not os.path.exists(os.path.join(folder, "model.bin")):
    os.makedirs(folder, exist_ok=True)
    build(request["target"]).save(folder)
  generator = ctranslate2.Generator(
      folder, device="cpu", compute_type=_COMPUTE[request["weights"]],
      inter_threads=1, intra_threads=threads)
  return generator, {"threads": threads, "device": "cpu"}


def generate(generator, request):
  """Continues prompts; arguments as of `transformers_server.generate`.

  Raises:
    ValueError: for min-p, which this engine lacks.
  """
  subprocess_server.check_no_min_p(request)
  ctranslate2.set_random_seed(request["seed"])
  sampled = request["temperature"] > 0
  options = {"sampling_topk": request["top_k"] if sampled else 1}
  if sampled:
    options.update(sampling_temperature=request["temperature"],
                   sampling_topp=request["top_p"])
  prompts = [[f"t{token}" for token in row] for row in request["prompts"]]
  peak_memory.reset()
  start = time.perf_counter()
  found = generator.generate_batch(
      prompts, max_length=request["max_new_tokens"], end_token=[],
      include_prompt_in_result=False, **options)
  seconds = time.perf_counter() - start
  tokens = [x.sequences_ids[0] for x in found]
  return {"tokens": tokens, "seconds": seconds, "target_calls": len(tokens[0]),
          "peak_bytes": peak_memory.peak()}


def build(folder):
  """Returns the specification of a Llama, with its weights.

  Args:
    folder: of the model, see `llama_files`.
  """
  config, weights = llama_files.config(folder), llama_files.tensors(folder)
  spec = specs.TransformerDecoderModelSpec.from_config(
      config["num_hidden_layers"], config["num_attention_heads"],
      activation=specs.Activation.SWISH, pre_norm=True, ffn_glu=True,
      rms_norm=True, rotary_dim=0, rotary_interleave=False,
      rotary_base=config["rope_theta"],
      num_heads_kv=config["num_key_value_heads"], head_dim=config["head_dim"])
  decoder = spec.decoder
  decoder.scale_embeddings = False
  decoder.embeddings.weight = weights["model.embed_tokens.weight"]
  decoder.projection.weight = weights["lm_head.weight"]
  decoder.layer_norm.gamma = weights["model.norm.weight"]
  for i, layer in enumerate(decoder.layer):
    at = f"model.layers.{i}."
    part = {name.removeprefix(at).removesuffix(".weight"): x
            for name, x in weights.items() if name.startswith(at)}
    attention, dense = layer.self_attention, layer.ffn
    attention.layer_norm.gamma = part["input_layernorm"]
    attention.linear[0].weight = np.concatenate(
        [part[f"self_attn.{name}_proj"] for name in "qkv"])
    attention.linear[1].weight = part["self_attn.o_proj"]
    dense.layer_norm.gamma = part["post_attention_layernorm"]
    dense.linear_0.weight = part["mlp.gate_proj"]
    dense.linear_0_noact.weight = part["mlp.up_proj"]
    dense.linear_1.weight = part["mlp.down_proj"]
  spec.register_vocabulary([f"t{i}" for i in range(config["vocab_size"])])
  spec.config.unk_token = spec.config.bos_token = spec.config.eos_token = "t0"
  spec.config.layer_norm_epsilon = config["rms_norm_eps"]
  spec.validate()
  spec.optimize()
  return spec


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
