"""Architectures as a `config.json` of Hugging Face, and read again."""

import dataclasses
import json

import pytest

from models.huggingface import config as hf_config
from models.huggingface import llama
from models.huggingface import masked
from models.huggingface import tensor_names
from support import published_configs as published
from support import tiny_models as tiny

TINY_GEMMA = dataclasses.replace(tiny.GEMMA, attention_softcap=0.0)
# Of as many positions as its texts may have by this scaling.
_YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_low_turns": 1.0,
         "rope_high_turns": 32.0, "rope_original_length": 16.0}
_LONGROPE = {"rope_scaling": "longrope", "rope_factor": 4.0,
             "rope_original_length": 64.0, "rope_gain": (1 + 2 / 6)**0.5,
             "rope_short_factors": (1.0, 1.5), "rope_long_factors": (2.0, 8.0)}
TINY_OPT = dataclasses.replace(tiny.OPT, num_kv_heads=tiny.OPT.num_heads)


def back(folder, config):
  """The architecture, written and read."""
  (folder / hf_config.FILE).write_text(json.dumps(hf_config.fields(config)))
  return hf_config.read(folder)


@pytest.mark.parametrize("changes", [
    {}, {"tie_embeddings": True}, {"window": 5}, {"qkv_bias": True},
    {"qkv_bias": True, "window": 5}, {"qk_norm": True},
    {"qk_norm": True, "qkv_bias": True, "out_bias": True, "window": 5},
    {"reordered_norm": True, "joint_qk_norm": True},
    {"reordered_norm": True, "joint_qk_norm": True, "window": 5,
     "full_every": 2, "rope_local_theta": 30.0, **_YARN},
    {"full_every": 2, "rope_full": False, "tie_embeddings": True},
    {"num_experts": 4, "experts_per_token": 2, "window": 5},
    {"num_experts": 4, "experts_per_token": 2, "qk_norm": True, "window": 5,
     "normalize_experts": False},
    {"num_experts": 4, "experts_per_token": 1, "joint_qk_norm": True},
    {"num_experts": 4, "experts_per_token": 2, "shared_dim": 20},
    {"num_experts": 4, "experts_per_token": 2, "shared_dim": 20,
     "qkv_bias": True, "normalize_experts": False},
    {"embedding_scale": 3.0}, {"residual_scale": 0.22, "query_scalar": 11.1},
    {"logit_divisor": 8.0, "qkv_bias": True, "out_bias": True},
    {"qkv_bias": True, "out_bias": True}, {"feed_forward_bias": True},
    {"rope_scaling": "linear", "rope_factor": 2.0},
    {"rope_scaling": "dynamic", "rope_factor": 2.0},
    {"rope_scaling": "llama3", "rope_factor": 2.0,
     "rope_original_length": 16.0},
    {**_YARN, "rope_low_turns": 0.5, "rope_high_turns": 8.0},
    {**_YARN, "qk_norm": True, "rope_gain": 1.2, "rope_truncate": False},
    _LONGROPE, {**_LONGROPE, "rope_gain": 1.2, "qk_norm": True},
    {**_LONGROPE, "max_length": 32, "rope_factor": 0.5},
    # Phi-3 alone has these.
    {"rope_part": 0.5, "window": 5},
    {**_LONGROPE, "head_dim": 6, "rope_part": 0.7, "tie_embeddings": True}])
def test_there_and_back(tmp_path, changes):
  config = dataclasses.replace(tiny.LLAMA, **changes)
  assert back(tmp_path, config) == config


# Their tensors lie otherwise, or they have images: what they compute is that of
# another family, in whose name they are written.
_WRITTEN_AS = {"phi3": {"llama", "mistral", "phi3"}, "gemma3": {"gemma3_text"},
               **dict.fromkeys(("kimi_k2", "deepseek_v32", "glm_moe_dsa",
                                "glm4_moe_lite"), {"deepseek_v3"}),
               "llada": {"llama"}, "Dream": {"qwen2"}, "mimo": {"qwen2"},
               "sdar": {"qwen3"}, "Fast_dLLM_Qwen": {"qwen2"},
               "qwen3_5": {"qwen3_5_text"}}


@pytest.mark.parametrize("name", sorted(
    name for name, fields in vars(published).items()
    if isinstance(fields, dict) and "model_type" in fields))
def test_no_family_takes_the_name_of_another(tmp_path, name):
  fields = getattr(published, name)
  family = fields["model_type"]
  config = published.read(tmp_path, fields)
  assert hf_config.family(config) in _WRITTEN_AS.get(family, {family})


def test_every_family_has_a_published_config_and_a_tensor_table():
  families = {fields["model_type"] for fields in vars(published).values()
              if isinstance(fields, dict) and "model_type" in fields}
  assert families == set(hf_config.ARCHITECTURES)
  # Those with images are read as models of text, masked ones as the causal
  # ones that they came from.
  assert set(tensor_names._TABLES) == families - {
      "gemma3", "qwen3_5", *masked.FAMILIES}
  assert set(llama.FAMILIES) <= families


def test_control_a_greedy_family_is_seen(tmp_path, monkeypatch):
  """One whose row says too little, ahead of all others, takes names."""
  greedy = llama.Family(lambda config: config.norm == "rms")
  monkeypatch.setattr(llama, "FAMILIES", {"new": greedy, **llama.FAMILIES})
  config = published.read(tmp_path, published.QWEN_3)
  assert hf_config.family(config) == "new"


def test_one_base_for_both_kinds_of_layers(tmp_path):
  """Which is told of each."""
  config = dataclasses.replace(tiny.LLAMA, reordered_norm=True, window=5,
                               joint_qk_norm=True, full_every=2)
  assert back(tmp_path, config) == dataclasses.replace(
      config, rope_local_theta=config.rope_theta)
  with pytest.raises(ValueError, match="rope_local_theta=0.0 has no place"):
    hf_config.fields(dataclasses.replace(config, **_YARN))


def test_long_texts_with_factors_of_their_own(tmp_path):
  """They are for all texts here, and so they are in the file."""
  config = dataclasses.replace(tiny.LLAMA, **{**_LONGROPE, "max_length": 128})
  again = back(tmp_path, config)
  assert again == dataclasses.replace(
      config, rope_factor=2.0, rope_short_factors=config.rope_long_factors)
  assert back(tmp_path, again) == again


def test_there_and_back_for_all_biases(tmp_path):
  config = dataclasses.replace(tiny.LLAMA, bias=True)
  assert back(tmp_path, config) == dataclasses.replace(
      tiny.LLAMA, qkv_bias=True, out_bias=True, feed_forward_bias=True)


@pytest.mark.parametrize("changes", [
    {}, {"feed_forward": "gelu"}, {"rope_part": 1.0}, {"parallel": False},
    {"rope_scaling": "linear", "rope_factor": 2.0},
    {"qkv_bias": False, "out_bias": False}, {"tie_embeddings": True},
    {"feed_forward": "gelu", "parallel": False, "rope_part": 1.0, "window": 5,
     "num_kv_heads": 2}])
def test_gpt_neox_and_starcoder_there_and_back(tmp_path, changes):
  biases = {"bias": False, "qkv_bias": True, "out_bias": True,
            "feed_forward_bias": True}
  config = dataclasses.replace(tiny.NEOX, **{**biases, **changes})
  again = back(tmp_path, config)
  if again.bias:
    again = dataclasses.replace(again, **biases)
  assert again == config


@pytest.mark.parametrize("changes", [
    {}, {"post_norm": True, "embedding_dim": 8}, {"tie_embeddings": False},
    {"bias": False}, {"dtype": "bfloat16"}])
def test_opt_there_and_back(tmp_path, changes):
  config = dataclasses.replace(TINY_OPT, **changes)
  assert back(tmp_path, config) == config


@pytest.mark.parametrize("changes", [
    {}, {"full_every": 0}, {"logit_softcap": 0.0}, {"query_scalar": 0},
    {"qkv_bias": True, "out_bias": True}, {"tie_embeddings": False},
    {"rope_scaling": "none", "rope_factor": 1.0}, {"dtype": "bfloat16"},
    {"qk_norm": False, "attention_softcap": 2.0, "rope_local_theta": 0.0},
    {"qk_norm": False, "window": 0, "full_every": 0, "rope_local_theta": 0.0},
    {"window": 0, "full_every": 0, "rope_local_theta": 10000.0}])
def test_gemma_there_and_back(tmp_path, changes):
  config = dataclasses.replace(TINY_GEMMA, **changes)
  assert back(tmp_path, config) == config


def test_gemma_1_there_and_back(tmp_path):
  config = dataclasses.replace(
      tiny.LLAMA, norm="rms_plus_one", feed_forward="geglu", norm_eps=1e-6,
      embedding_scale=tiny.LLAMA.dim**0.5)
  assert back(tmp_path, config) == config


@pytest.mark.parametrize("changes", [
    {}, {"tie_embeddings": False}, {"norm_eps": 1e-6}, {"hidden_dim": 64}])
def test_gpt_2_there_and_back(tmp_path, changes):
  config = dataclasses.replace(tiny.GPT_2, **changes)
  assert back(tmp_path, config) == config


@pytest.mark.parametrize("config, message", [
    (tiny.GEMMA, "attn_logit_softcapping=3.0 of gemma3_text"),
    (dataclasses.replace(TINY_GEMMA, embedding_scale=1.0),
     "embedding_scale=1.0 has no place in .* of type gemma3_text; 4.0 has"),
    (dataclasses.replace(tiny.LLAMA, window=3, full_every=2), "full_every=2"),
    (dataclasses.replace(tiny.LLAMA, sandwich_norm=True), "sandwich_norm=True"),
    (dataclasses.replace(tiny.GPT_2, bias=False), "qkv_bias=False"),
    (dataclasses.replace(tiny.LLAMA, post_norm=True), "post_norm=True"),
    (dataclasses.replace(tiny.LLAMA, qkv_bias=True, window=5,
                         feed_forward_bias=True), "feed_forward_bias=True"),
    (dataclasses.replace(tiny.LLAMA, norm="layer", num_kv_heads=4, bias=True),
     "feed_forward='swiglu' has no place in .* of type gpt_neox"),
    (dataclasses.replace(tiny.NEOX, feed_forward_bias=False, bias=False),
     "feed_forward_bias=False has no place in .* of type gpt_neox"),
    (dataclasses.replace(tiny.LLAMA, rope_part=0.5, rope_scaling="linear"),
     "rope_part=0.5 has no place in .* of type llama"),
    (dataclasses.replace(tiny.LLAMA, rope_part=0.5, out_bias=True,
                         qkv_bias=True), "qkv_bias=True has no .* type phi3"),
    (dataclasses.replace(tiny.LLAMA, **_YARN, max_length=63),
     "max_length=63 has no place in .* of type llama; 64 has"),
    (dataclasses.replace(tiny.MIXTRAL, normalize_experts=False),
     "normalize_experts=False has no place in .* of type mixtral"),
    (dataclasses.replace(tiny.MIXTRAL, shared_dim=8, window=5),
     "use_sliding_window=True of qwen2_moe"),
    (dataclasses.replace(tiny.MIXTRAL, shared_dim=8, qk_norm=True),
     "qk_norm=True has no place in .* of type qwen2_moe"),
    (dataclasses.replace(tiny.LLAMA, qk_norm=True, residual_scale=0.5),
     "residual_scale=0.5 has no place in .* of type qwen3"),
    (dataclasses.replace(tiny.LLAMA, outputs=1), "outputs=1"),
    (tiny.OPT, "num_kv_heads=2 has no place in .* of type opt; 4 has"),
    (dataclasses.replace(TINY_OPT, norm_eps=1e-6), "norm_eps=1e-06"),
])
def test_what_no_family_has_is_refused(config, message):
  with pytest.raises(ValueError, match=message):
    hf_config.fields(config)
