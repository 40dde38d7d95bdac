"""A tiny architecture of every family, each with what its family may have."""

import dataclasses

from support import tiny_models as tiny


def llamas(family="llama", **changes):
  """Returns `tiny.LLAMA` with these fields, as of this family."""
  return dataclasses.replace(tiny.LLAMA, family=family, **changes)


def _experts(family, **changes):
  return dataclasses.replace(tiny.MIXTRAL, family=family, **changes)


GEMMA_2 = dataclasses.replace(
    tiny.GEMMA, qk_norm=False, rope_scaling="none", rope_factor=1.0,
    rope_theta=100.0, rope_local_theta=0.0, query_scalar=0, family="gemma2")
GEMMA_3 = dataclasses.replace(
    tiny.GEMMA, num_layers=6, full_every=6, attention_softcap=0.0,
    rope_scaling="none", rope_factor=1.0, rope_local_theta=10000.0,
    query_scalar=0)
CONFIGS = {
    "llama": tiny.LLAMA,
    "llama with biases": llamas(tie_embeddings=True, qkv_bias=True,
                                out_bias=True, feed_forward_bias=True),
    "mistral": llamas("mistral", window=5, tie_embeddings=True),
    "qwen2": llamas("qwen2", qkv_bias=True),
    "qwen3": llamas("qwen3", qk_norm=True, head_dim=6),
    "olmo2": llamas("olmo2", reordered_norm=True, joint_qk_norm=True),
    "smollm3": llamas("smollm3", num_layers=4, full_every=4, rope_full=False,
                      tie_embeddings=True),
    "granite": llamas("granite", embedding_scale=3.0, residual_scale=0.5,
                      logit_divisor=2.0, query_scalar=16),
    "phi3": llamas("phi3", rope_part=0.5),
    "starcoder2": llamas("starcoder2", norm="layer", feed_forward="gelu",
                         bias=True),
    "gemma": llamas("gemma", norm="rms_plus_one", feed_forward="geglu",
                    embedding_scale=4.0, tie_embeddings=True),
    "gemma2": GEMMA_2, "gemma3_text": GEMMA_3,
    "gpt_neox": tiny.NEOX, "gpt2": tiny.GPT_2,
    "opt": dataclasses.replace(tiny.OPT, num_kv_heads=4, post_norm=True,
                               embedding_dim=8),
    "mixtral": tiny.MIXTRAL,
    "qwen2_moe": _experts("qwen2_moe", qkv_bias=True, shared_dim=8,
                          normalize_experts=False),
    "qwen3_moe": _experts("qwen3_moe", qk_norm=True, head_dim=6),
    "olmoe": _experts("olmoe", joint_qk_norm=True, normalize_experts=False)}
