"""The architectures of GGUF files: their keys, names of tensors, and layouts.

A row is what differs from a Llama; `fixed` is what llama.cpp hard-codes.
"""

from typing import Any, NamedTuple

import numpy as np

from models.folders import json_files

# Keys after the name of the architecture, and what Hugging Face calls them.
KEYS = {
    "vocab_size": "", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta"}
# Tensors outside of the layers.
TOP = {"token_embd": "model.embed_tokens", "output": "lm_head",
       "output_norm": "model.norm"}
LAYER = "model.layers.{}"
# Parts of a layer.
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj"}


class Architecture(NamedTuple):
  """The differences of an architecture from a Llama."""
  family: str  # `model_type` of Hugging Face
  # Keys that differ from `KEYS`; "" for one that says nothing needed
  keys: dict[str, str] = {}
  fixed: dict[str, Any] = {}  # Fields of `config.json` that no key gives
  # Of tensors, where they are not those above; experts have a "{}" for their
  # number
  top: dict[str, str] = {}
  layer: str = LAYER
  names: dict[str, str] = {}
  # Whether rotary embeddings turn neighbours, for which rows of queries and
  # keys have another order
  paired: bool = False
  norm_offset: int = 0  # What the scales of norms have been increased by
  # Parts whose matrices are the other way round
  transposed: tuple[str, ...] = ()
  # A part that has query, key and value of each head together in Hugging Face's
  # files, and one after the other here; or ""
  fused_heads: str = ""
  partial: str = ""  # Field of the share of channels that are rotated; or ""


_EXPERTS = {"expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_count": "num_experts"}
_EXPERT_NAMES = {"ffn_gate_inp": "mlp.gate",
                 "ffn_gate_exps": "mlp.experts.{}.gate_proj",
                 "ffn_up_exps": "mlp.experts.{}.up_proj",
                 "ffn_down_exps": "mlp.experts.{}.down_proj"}
_SHARED = "expert_shared_feed_forward_length"
_LAYER_NORM = "attention.layer_norm_epsilon"
_WINDOW = {"attention.sliding_window": "sliding_window"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm",
                "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA_2 = {**_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_GRANITE = {"logit_scale": "logits_scaling",
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier"}

ARCHITECTURES = {
    "llama": Architecture("llama", paired=True),
    # Which has experts, and the same name in a file.
    "mixtral": Architecture(
        "mixtral", paired=True,
        keys={"expert_count": "num_local_experts",
              "expert_used_count": "num_experts_per_tok"},
        names={"ffn_gate_inp": "block_sparse_moe.gate",
               "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
               "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
               "ffn_down_exps": "block_sparse_moe.experts.{}.w2"}),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen2moe": Architecture(
        "qwen2_moe", fixed={"norm_topk_prob": False},
        keys={**_EXPERTS, "feed_forward_length": "",
              _SHARED: "shared_expert_intermediate_size"},
        names={**_EXPERT_NAMES,
               "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
               "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
               "ffn_up_shexp": "mlp.shared_expert.up_proj",
               "ffn_down_shexp": "mlp.shared_expert.down_proj"}),
    "qwen3moe": Architecture(
        "qwen3_moe", fixed={"norm_topk_prob": True},
        keys={**_EXPERTS, "feed_forward_length": ""}, names=_EXPERT_NAMES),
    "olmo2": Architecture("olmo2", names=_NORMS_AFTER),
    "olmoe": Architecture(
        "olmoe", fixed={"norm_topk_prob": False}, names=_EXPERT_NAMES,
        keys={"expert_count": "num_experts",
              "expert_used_count": "num_experts_per_tok"}),
    "smollm3": Architecture("smollm3", fixed={"no_rope_layer_interval": 4},
                            paired=True),
    "granite": Architecture("granite", keys=_GRANITE, paired=True),
    "phi3": Architecture(
        "phi3", keys=_WINDOW, partial="partial_rotary_factor",
        names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "gemma": Architecture("gemma", norm_offset=1),
    "gemma2": Architecture(
        "gemma2", names=_GEMMA_2, norm_offset=1,
        keys={**_WINDOW, "attn_logit_softcapping": "attn_logit_softcapping",
              "final_logit_softcapping": "final_logit_softcapping"}),
    "gemma3": Architecture(
        "gemma3_text", names=_GEMMA_2, norm_offset=1,
        keys={**_WINDOW, "rope.freq_base_swa": "rope_local_base_freq",
              "final_logit_softcapping": "final_logit_softcapping"}),
    "gptneox": Architecture(
        "gpt_neox", partial="rotary_pct", fixed={"hidden_act": "gelu"},
        keys={_LAYER_NORM: "layer_norm_eps",
              "rope.freq_base": "rotary_emb_base",
              "attention.head_count_kv": "",
              "use_parallel_residual": "use_parallel_residual"},
        top={"token_embd": "gpt_neox.embed_in", "output": "embed_out",
             "output_norm": "gpt_neox.final_layer_norm"},
        layer="gpt_neox.layers.{}", fused_heads="attn_qkv",
        names={"attn_qkv": "attention.query_key_value",
               "attn_output": "attention.dense",
               "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}),
    "starcoder2": Architecture(
        "starcoder2", keys={_LAYER_NORM: "norm_epsilon"},
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "gpt2": Architecture(
        "gpt2",
        keys={"context_length": "n_positions", "embedding_length": "n_embd",
              "block_count": "n_layer", "attention.head_count": "n_head",
              "feed_forward_length": "n_inner",
              "attention.head_count_kv": "", _LAYER_NORM: "layer_norm_epsilon"},
        top={"token_embd": "transformer.wte", "output_norm": "transformer.ln_f",
             "position_embd": "transformer.wpe"},
        layer="transformer.h.{}",
        names={"attn_norm": "ln_1", "attn_qkv": "attn.c_attn",
               "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
               "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
}


def of(path, metadata) -> tuple[str, Architecture]:
  """Returns the prefix of the keys of a file, and its `Architecture`."""
  name = metadata.get("general.architecture")
  known = sorted(set(ARCHITECTURES) - {"mixtral"})
  if not isinstance(name, str) or name not in known:
    raise ValueError(f"'{path}': general.architecture={json_files.shown(name)} "
                     f"is not one of {', '.join(known)}.")
  has_experts = name == "llama" and np.any(
      metadata.get("llama.expert_count", 0))
  return name, ARCHITECTURES["mixtral" if has_experts else name]
