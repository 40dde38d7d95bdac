"""Masked-diffusion models of Hugging Face: LLaDA, Dream, SDAR, Fast-dLLM v2.

LLaDA (arXiv 2502.09992) is a Llama with OLMo's names, Dream (arXiv 2508.15487)
a Qwen2; their tokens all see each other. SDAR (arXiv 2510.06303) is a Qwen3,
Fast-dLLM v2 (arXiv 2509.26328) a Qwen2, whose tokens see their block and those
before. Code that the files name is not run.
"""

import pathlib
import re

from models.folders import json_files
from models.huggingface import config_fields
from models.huggingface import llama
from models.huggingface import rope as hf_rope

LLADA, DREAM, SDAR, FAST = "llada", "Dream", "sdar", "Fast_dLLM_Qwen"
FAMILIES = (LLADA, DREAM, SDAR, FAST)
# What those are that have the names of a causal family.
_LIKE = {DREAM: "qwen2", SDAR: "qwen3", FAST: "qwen2"}
# Of the tokenizer, which all models of Fast-dLLM v2 share; no field says.
_FAST_MASK = 151665
# Lengths of blocks in training, and what concerns that alone.
_TRAINING = ("bd_size", "block_size", "attn_implementation",
             "fuse_cross_entropy", "ep_size")
# Fields of LLaDA, as `transformer.Config` calls what they hold.
LLADA_SIZES = {"vocab_size": "vocab_size", "dim": "d_model",
               "num_layers": "n_layers", "num_heads": "n_heads",
               "max_length": "max_sequence_length"}
# What else OLMo could have, and LLaDA has not.
_FIXED = {
    "activation_type": ("silu",), "block_type": ("llama",),
    "layer_norm_type": ("rms",), "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False,), "attention_layer_norm": (False,),
    "block_group_size": (1,), "alibi": (False,), "rope": (True,),
    "include_bias": (False,), "scale_logits": (False,),
    "input_emb_norm": (False,), "multi_query_attention": (False,)}
# These change nothing where the others are as they are here.
_UNUSED = """
    alibi_bias_max attention_layer_norm_with_affine flash_attention
    init_cutoff_factor init_device init_fn mlp_ratio precision
    rope_full_precision
    """.split()
_CODE = {LLADA: r"(configuration|modeling)_llada\.",
         DREAM: r"(configuration|modeling|tokenization)_dream\.",
         SDAR: r"(configuration|modeling)_sdar\.",
         FAST: r"(configuration|modeling)\."}
_TOP = {"wte.weight": "model.embed_tokens.weight",
        "ln_f.weight": "model.norm.weight", "ff_out.weight": "lm_head.weight"}
_BLOCK = {"attn_norm": "input_layernorm", "q_proj": "self_attn.q_proj",
          "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
          "attn_out": "self_attn.o_proj", "ff_norm": "post_attention_layernorm",
          "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
          "ff_out": "mlp.down_proj"}
_take = config_fields.take


def parse(fields, family, common):
  """Reads what these families have; see `llama.parse`."""
  config_fields.take_own_code(fields, family, _CODE[family])
  _mask(fields, family)  # Of no use to the architecture.
  if family in _LIKE:
    for name in _TRAINING:
      fields.pop(name, None)
    return {"family": _LIKE[family],
            **llama.parse(fields, _LIKE[family], common)}
  for name, allowed in _FIXED.items():
    config_fields.take_one_of(fields, name, family, allowed)
  config_fields.take_one_of(fields, "embedding_size", family,
                            (common["vocab_size"],))
  for name in _UNUSED:
    fields.pop(name, None)
  rope = hf_rope.parse(fields, common["max_length"], llama.FAMILIES[
      "llama"].theta, 1.0)
  return {
      "family": "llama",
      "num_kv_heads": _take(fields, "n_kv_heads", None) or common["num_heads"],
      "head_dim": config_fields.channels(common),
      "hidden_dim": _take(fields, "mlp_hidden_size"),
      "qkv_bias": _take(fields, "include_qkv_bias", False),
      "tie_embeddings": _take(fields, "weight_tying", False),
      "norm_eps": _take(fields, "rms_norm_eps", 1e-5), **rope}


def _mask(fields, family):
  return _take(fields, "mask_token_id", *[_FAST_MASK] * (family == FAST))


def mask_of(folder) -> dict:
  """Returns the fields of `types.MaskedModel` but for the language model.
  Raises ValueError for a folder of another family."""
  path = pathlib.Path(folder) / "config.json"
  fields = json_files.read(path)
  family = fields.get("model_type")
  if family not in FAMILIES:
    raise ValueError(f"'{path}': model_type={json_files.shown(family)} is no "
                     f"masked-diffusion model; {' or '.join(FAMILIES)} is.")
  in_blocks = family in (SDAR, FAST)
  return {"mask_id": _mask(fields, family), "shifted": family in (DREAM, FAST),
          "block_causal": in_blocks, "causal_prompt": in_blocks}


def renamed(tensors):
  """Returns tensors of LLaDA under the names of a Llama, others unchanged."""
  if not any(".blocks." in name for name in tensors):
    return tensors
  return {_llama_name(name): x for name, x in tensors.items()}


def _llama_name(name):
  name = name.removeprefix("model.").removeprefix("transformer.")
  match = re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(weight|bias)", name)
  if match and match[2] in _BLOCK:
    return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.{match[3]}"
  return _TOP.get(name, name)
