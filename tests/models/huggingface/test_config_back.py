"""Architectures as a `config.json` of their family, and read again."""

import dataclasses
import json

import pytest

from models.huggingface import config as hf_config, llama, masked, tensor_names
from support import published_configs as published, tiny_models as tiny
from support.tiny_families import CONFIGS, llamas

TINY_GEMMA = dataclasses.replace(tiny.GEMMA, attention_softcap=0.0)
# Of as many positions as its texts may have by this scaling.
_YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_low_turns": 1.0,
         "rope_high_turns": 32.0, "rope_original_length": 16.0}
_LONGROPE = {"rope_scaling": "longrope", "rope_factor": 4.0,
             "rope_original_length": 64.0, "rope_gain": (1 + 2 / 6)**0.5,
             "rope_short_factors": (1.0, 1.5), "rope_long_factors": (2.0, 8.0)}
_EXPERTS = {"num_experts": 4, "experts_per_token": 2}
TINY_OPT = dataclasses.replace(tiny.OPT, num_kv_heads=tiny.OPT.num_heads)


def back(folder, config):
  """The architecture, written and read."""
  (folder / hf_config.FILE).write_text(json.dumps(hf_config.fields(config)))
  return hf_config.read(folder)


@pytest.mark.parametrize("config", [
    *CONFIGS.values(), llamas("llama", tie_embeddings=True),
    llamas("mistral", window=5), llamas("qwen2", qkv_bias=True, window=5),
    llamas("qwen3", qk_norm=True, qkv_bias=True, out_bias=True, window=5),
    llamas("olmo3", reordered_norm=True, joint_qk_norm=True, window=5,
           full_every=2, rope_local_theta=30.0, **_YARN),
    llamas("mixtral", window=5, **_EXPERTS),
    llamas("qwen3_moe", qk_norm=True, window=5, normalize_experts=False,
           **_EXPERTS),
    llamas("granite", embedding_scale=3.0, residual_scale=0.22,
           query_scalar=11.1, logit_divisor=8.0, qkv_bias=True, out_bias=True),
    llamas("llama", rope_scaling="linear", rope_factor=2.0),
    llamas("llama", rope_scaling="dynamic", rope_factor=2.0),
    llamas("llama", rope_scaling="llama3", rope_factor=2.0,
           rope_original_length=16.0),
    llamas("llama", **{**_YARN, "rope_low_turns": 0.5, "rope_high_turns": 8.0}),
    llamas("qwen3", **_YARN, qk_norm=True, rope_gain=1.2, rope_truncate=False),
    llamas("qwen3", **{**_LONGROPE, "rope_gain": 1.2}, qk_norm=True),
    llamas("llama", **{**_LONGROPE, "max_length": 32, "rope_factor": 0.5}),
    llamas("phi3", rope_part=0.5, window=5),
    llamas("phi3", **_LONGROPE, head_dim=6, rope_part=0.7, tie_embeddings=True),
    llamas("gemma", norm="rms_plus_one", feed_forward="geglu", norm_eps=1e-6,
           embedding_scale=tiny.LLAMA.dim**0.5),
    TINY_GEMMA, dataclasses.replace(
        TINY_GEMMA, full_every=0, logit_softcap=0.0, query_scalar=0,
        qkv_bias=True, out_bias=True, tie_embeddings=False, dtype="bfloat16"),
    dataclasses.replace(TINY_GEMMA, window=0, full_every=0),
    dataclasses.replace(tiny.GEMMA, family="gemma2", qk_norm=False,
                        rope_local_theta=0.0),
    dataclasses.replace(
        tiny.NEOX, feed_forward="gelu", parallel=False, tie_embeddings=True,
        qkv_bias=False, out_bias=False, rope_scaling="linear", rope_factor=2.0),
    llamas("starcoder2", norm="layer", feed_forward="gelu", bias=True,
           window=5),
    TINY_OPT, dataclasses.replace(TINY_OPT, bias=False, tie_embeddings=False),
    dataclasses.replace(tiny.GPT_2, norm_eps=1e-6, hidden_dim=64,
                        tie_embeddings=False)],
                         ids=lambda x: x.family)
def test_there_and_back(tmp_path, config):
  assert back(tmp_path, config) == config


# Read in the name of a family that computes the same: with images, with code of
# their own, for masked diffusion.
_WRITTEN_AS = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text",
               **dict.fromkeys(("kimi_k2", "deepseek_v32", "glm_moe_dsa",
                                "glm4_moe_lite"), "deepseek_v3"),
               "llada": "llama", "Dream": "qwen2", "mimo": "qwen2",
               "sdar": "qwen3", "Fast_dLLM_Qwen": "qwen2"}
# Their indexer is not read, so that texts are short, and yarn for longer ones.
_SHORTENED = ("deepseek_v32",)


@pytest.mark.parametrize("name", published.ALL)
def test_published_there_and_back(tmp_path, name):
  config = published.read(tmp_path, published.ALL[name])
  family = published.ALL[name]["model_type"]
  assert config.family == _WRITTEN_AS.get(family, family)
  if family not in _SHORTENED:
    assert back(tmp_path, config) == config


def test_every_family_has_a_published_config_and_a_tensor_table():
  families = {fields["model_type"] for fields in published.ALL.values()}
  assert families == set(hf_config.ARCHITECTURES)
  # Those with images are read as models of text, masked ones as the causal
  # ones that they came from.
  assert set(tensor_names._TABLES) == families - {
      "gemma3", "qwen3_5", *masked.FAMILIES}
  assert set(llama.FAMILIES) <= families


def test_one_base_for_both_types_of_layers(tmp_path):
  config = llamas("olmo3", reordered_norm=True, joint_qk_norm=True, window=5,
                  full_every=2)
  with pytest.raises(ValueError, match="rope_local_theta=0.0 does not fit"):
    hf_config.fields(config)
  config = dataclasses.replace(config, rope_local_theta=config.rope_theta)
  assert back(tmp_path, config) == config


def test_long_texts_with_factors_of_their_own(tmp_path):
  config = llamas("llama", **{**_LONGROPE, "max_length": 128,
                              "rope_factor": 2.0})
  again = back(tmp_path, config)
  assert again == dataclasses.replace(
      config, rope_short_factors=config.rope_long_factors)
  assert back(tmp_path, again) == again


@pytest.mark.parametrize("config, message", [
    (llamas("llada"), "family='llada' is none that is written; one of "),
    (llamas("mine"), "family='mine' is none that is written; one of "),
    (tiny.GEMMA, "attn_logit_softcapping=3.0 of gemma3_text"),
    (dataclasses.replace(TINY_GEMMA, embedding_scale=1.0),
     "embedding_scale=1.0 does not fit .* of type gemma3_text; 4.0 does"),
    (llamas("llama", qk_norm=True), "qk_norm=True does not fit .* of type "
     "llama; False does. Another `family` may fit"),
    (llamas("llama", sandwich_norm=True), "sandwich_norm=True"),
    (llamas("llama", bias=True), "bias=True"),
    (dataclasses.replace(tiny.GPT_2, bias=False), "bias=False"),
    (llamas("qwen2", qkv_bias=True, feed_forward_bias=True),
     "feed_forward_bias=True"),
    (dataclasses.replace(tiny.NEOX, feed_forward_bias=False),
     "feed_forward_bias=False does not fit .* of type gpt_neox"),
    (llamas("llama", rope_part=0.5), "rope_part=0.5 does not fit"),
    (llamas("llama", **_YARN, max_length=63),
     "max_length=63 does not fit .* of type llama; 64 does"),
    (dataclasses.replace(tiny.MIXTRAL, normalize_experts=False),
     "normalize_experts=False does not fit .* of type mixtral"),
    (llamas("qwen2_moe", shared_dim=8, window=5, **_EXPERTS),
     "use_sliding_window=True of qwen2_moe"),
    (llamas("llama", outputs=1), "outputs=1"),
    (tiny.OPT, "num_kv_heads=2 does not fit .* of type opt; 4 does"),
])
def test_what_the_family_has_not_is_refused(config, message):
  with pytest.raises(ValueError, match=message):
    hf_config.fields(config)
