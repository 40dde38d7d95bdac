"""Every field of a config takes effect, or is refused by its name."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from models import transformer
from support import tiny_models as tiny

_STATES = {"num_layers": 2, "full_every": 0, "attention_layers": (0,),
           "rope_part": 1.0, "positions": "rope"}
MIXERS = {
    "attention": tiny.LLAMA,
    "latent": dataclasses.replace(
        tiny.DEEPSEEK_2, num_experts=0, experts_per_token=0, expert_groups=0,
        groups_per_token=0, shared_dim=0, shared_gate=True, expert_scale=1.0,
        normalize_experts=True, rope_interleaved=False),
    "delta": dataclasses.replace(tiny.DELTA, **_STATES),
    "mamba2": dataclasses.replace(tiny.MAMBA, **_STATES)}
_EXPERTS = {"num_experts": 4, "experts_per_token": 2}
_TWO_TYPES = {"rope_full": False, "full_every": 2}
_YARN = {"head_dim": 10, "rope_scaling": "yarn", "rope_factor": 8.0,
         "rope_low_turns": 0.3, "rope_high_turns": 3.0,
         "rope_original_length": 16.0, "rope_theta": 30.0}
_LONGROPE = {"head_dim": 4, "rope_scaling": "longrope",
             "rope_original_length": 64.0, "rope_short_factors": (1.5, 2.5),
             "rope_long_factors": (3.0, 8.0)}
# Another value, and fields that have to be set for it to matter.
FIELDS = {
    "vocab_size": (17, {}), "dim": (12, {}), "num_layers": (3, {}),
    "num_heads": (8, {}), "num_kv_heads": (4, {}), "head_dim": (6, {}),
    "hidden_dim": (20, {}), "max_length": (65, _LONGROPE),
    "num_experts": (4, {"experts_per_token": 2}),
    "experts_per_token": (1, _EXPERTS), "normalize_experts": (False, _EXPERTS),
    "shared_dim": (8, _EXPERTS), "shared_gate": (False, {
        "shared_dim": 8, **_EXPERTS}), "router": ("sigmoid", _EXPERTS),
    "expert_groups": (2, {"groups_per_token": 1, **_EXPERTS}),
    "groups_per_token": (1, {
        "expert_groups": 2, "groups_per_token": 2, **_EXPERTS}),
    "expert_scale": (2.0, _EXPERTS),
    "dense_layers": (1, {"dense_dim": 8, **_EXPERTS}),
    "dense_dim": (12, {"dense_layers": 1, "dense_dim": 8, **_EXPERTS}),
    "latent_dim": (7, {}), "query_rank": (10, {}), "plain_dim": (6, {}),
    "value_dim": (5, {}), "norm": ("layer", {}), "positions": ("learned", {}),
    "feed_forward": ("geglu", {}), "bias": (True, {}), "qkv_bias": (True, {}),
    "out_bias": (True, {}), "feed_forward_bias": (True, {}),
    "tie_embeddings": (True, {}), "outputs": (1, {}), "norm_eps": (0.1, {}),
    "qk_norm": (True, {"qk_norm": False}), "joint_qk_norm": (
        True, {"qk_norm": False}),
    "attention_gate": (True, {"attention_gate": False}),
    "linear_layer": (None, {}), "linear_key_heads": (4, {}),
    "linear_value_heads": (8, {}), "linear_key_dim": (2, {}),
    "linear_value_dim": (6, {}), "linear_conv": (4, {}),
    "post_norm": (True, {}), "sandwich_norm": (True, {}),
    "reordered_norm": (True, {}), "parallel": (True, {}),
    "residual_scale": (0.5, {}), "embedding_dim": (8, {}),
    "embedding_scale": (3.0, {}), "logit_divisor": (2.0, {}),
    "query_scalar": (7.0, {}), "attention_softcap": (1.0, {}),
    "logit_softcap": (1.0, {}), "window": (3, {}),
    "full_every": (2, {"rope_full": False}), "attention_layers": ((1,), {}),
    "rope_full": (False, {"full_every": 2}), "rope_interleaved": (True, {}),
    "rope_part": (0.5, {}), "rope_theta": (10.0, {}),
    "rope_local_theta": (10.0, _TWO_TYPES),
    "rope_scaling": ("linear", {"rope_factor": 2.0}),
    "rope_factor": (2.0, _YARN), "rope_low_turns": (1.5, _YARN),
    "rope_high_turns": (1.0, _YARN), "rope_original_length": (12.0, _YARN),
    "rope_gain": (1.5, _YARN), "rope_truncate": (False, _YARN),
    "rope_short_factors": ((1.0, 9.0), _LONGROPE),
    "rope_long_factors": ((1.0, 9.0), {**_LONGROPE, "max_length": 65}),
    "scan_layers": (True, {}), "dtype": ("bfloat16", {}),
    "weights": ("bfloat16", {})}


@functools.lru_cache(maxsize=None)
def program(config):
  """The logits of a text as they are lowered, which takes less than compiling.
  """
  return jax.jit(transformer.causal_logits, static_argnums=0).lower(
      transformer.language_model(config), transformer.abstract_params(config),
      jax.ShapeDtypeStruct((1, 9), np.int32)).as_text()


def test_all_fields_but_the_name_of_the_family():
  names = {field.name for field in dataclasses.fields(transformer.Config)}
  assert set(FIELDS) == names - {"family"}


@pytest.mark.parametrize("mixer", MIXERS)
def test_control_the_name_of_the_family_changes_nothing(mixer):
  assert program(MIXERS[mixer]) == program(
      dataclasses.replace(MIXERS[mixer], family="other"))


@pytest.mark.cases(60)
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_takes_effect_or_is_refused_by_its_name(field, mixer):
  value, needs = FIELDS[field]
  config = dataclasses.replace(MIXERS[mixer], **needs)
  if field == "linear_layer":
    value = "delta" if config.linear_layer == "mamba2" else "mamba2"
  assert getattr(config, field) != value
  try:
    other = dataclasses.replace(config, **{field: value})
  except ValueError as e:
    assert f"{field}=" in str(e)
    return
  ours, theirs = map(transformer.abstract_params, (config, other))
  if jax.tree.structure(ours) == jax.tree.structure(theirs) and (
      jax.tree.leaves(ours) == jax.tree.leaves(theirs)):
    assert program(config) != program(other)
