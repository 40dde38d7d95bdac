"""Scalings of rotary positions in `config.json`, for longer texts."""

import math

import pytest

from support.published_configs import (LLAMA_2, NEW_GEMMA_3, PHI_3, QWEN_2,
                                       STARCODER_2, read)

# As its authors say to change it for long texts.
_YARN = {"factor": 4.0, "original_max_position_embeddings": 32768,
         "type": "yarn"}
QWEN_2_LONG = {**QWEN_2, "rope_scaling": _YARN}
_LONGROPE = {"type": "longrope", "short_factor": [1] + [1.25] * 47,
             "long_factor": [1.5] + [64.0] * 47}
PHI_3_LONG = {**PHI_3, "max_position_embeddings": 131072,
              "rope_scaling": _LONGROPE, "sliding_window": 262144}
PHI_4_MINI = {
    **PHI_3_LONG, "hidden_size": 3072, "num_attention_heads": 24,
    "num_key_value_heads": 8, "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True, "vocab_size": 200064}
PUBLISHED = {
    "Qwen2.5 long": (QWEN_2_LONG, dict(
        rope_scaling="yarn", rope_factor=4, rope_original_length=32768,
        rope_low_turns=1, rope_high_turns=32, rope_truncate=True,
        rope_gain=0.1 * math.log(4) + 1, max_length=131072)),
    "Phi-3 mini 128k": (PHI_3_LONG, dict(
        rope_scaling="longrope", rope_original_length=4096, max_length=4096,
        rope_factor=32, rope_gain=math.sqrt(1 + 5 / 12), window=0, rope_part=1,
        rope_short_factors=(1.0,) + (1.25,) * 47,
        rope_long_factors=(1.5,) + (64.0,) * 47)),
    "Phi-4 mini": (PHI_4_MINI, dict(
        rope_scaling="longrope", max_length=4096, head_dim=128, num_kv_heads=8,
        rope_part=0.75, rope_gain=math.sqrt(1 + 5 / 12), tie_embeddings=True)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(tmp_path, name):
  fields, expected = PUBLISHED[name]
  config = read(tmp_path, fields)
  assert {k: getattr(config, k) for k in expected} == expected


def test_both_ways_to_tell_longrope(tmp_path):
  expected = read(tmp_path, PHI_4_MINI)
  for kind in ("su", "yarn"):
    assert read(tmp_path, {
        **PHI_4_MINI, "rope_scaling": {**_LONGROPE, "type": kind}}) == expected
  new = {k: v for k, v in PHI_4_MINI.items() if k not in (
      "rope_scaling", "rope_theta", "partial_rotary_factor", "auto_map")}
  assert read(tmp_path, {**new, "rope_parameters": {
      **_LONGROPE, "rope_theta": 1e4, "rope_type": "longrope",
      "partial_rotary_factor": 0.75,
      "original_max_position_embeddings": 4096}}) == expected
  new.pop("original_max_position_embeddings")
  assert read(tmp_path, {**new, "rope_parameters": {
      **_LONGROPE, "partial_rotary_factor": 0.75}}) == expected
  # A static argument of compiled functions.
  assert hash(expected) == hash(read(tmp_path, PHI_4_MINI))


def test_the_gain_of_a_scaling_that_is_not_told(tmp_path):
  yarn = {"type": "yarn", "factor": 40, "mscale": 1.0,
          "mscale_all_dim": 0.5, "original_max_position_embeddings": 4096}
  gain = lambda **more: read(
      tmp_path, {**LLAMA_2, "rope_scaling": {**yarn, **more}}).rope_gain
  growth = 0.1 * math.log(40)
  assert gain() == pytest.approx((growth + 1) / (growth / 2 + 1), rel=1e-12)
  assert gain(mscale=0) == pytest.approx(growth + 1, rel=1e-12)
  assert gain(factor=0.5, mscale=None) == 1
  assert gain(attention_factor=1.5) == 1.5
  # Without a factor: by how much longer texts are than the original ones.
  told = dict(factor=None, mscale=None, original_max_position_embeddings=1024)
  assert gain(**told) == pytest.approx(0.1 * math.log(4) + 1, rel=1e-12)
  gain = lambda **more: read(
      tmp_path, {**PHI_3_LONG, "rope_scaling": {**_LONGROPE, **more}}).rope_gain
  assert gain(factor=16) == pytest.approx(math.sqrt(1 + 4 / 12), rel=1e-12)
  assert gain(factor=0.5) == 1
  assert gain(attention_factor=1) == 1


def test_windows_that_only_longer_texts_feel(tmp_path):
  window = lambda fields, size, **more: read(
      tmp_path, {**fields, "sliding_window": size, **more}).window
  assert window(PHI_3_LONG, 5000) == 5000
  assert window(STARCODER_2, 20000) == 0
  assert window(STARCODER_2, 20000, rope_scaling=_YARN) == 20000
  used = {"use_sliding_window": True, "max_window_layers": 0}
  assert window(QWEN_2, 40000, **used) == 0
  assert window(QWEN_2_LONG, 40000, **used) == 40000


def test_texts_end_where_factors_would_change(tmp_path):
  length = lambda **fields: read(tmp_path, {**PHI_3_LONG, **fields}).max_length
  assert length() == 4096
  assert length(original_max_position_embeddings=2048) == 2048
  assert length(max_position_embeddings=2048) == 2048
  same = {**_LONGROPE, "short_factor": _LONGROPE["long_factor"]}
  assert length(rope_scaling=same) == 131072


def test_parameters_that_transformers_ignores(tmp_path, caplog):
  """As in DeepSeek-R1-0528-Qwen3-8B and in Yarn-Llama-2."""
  expected = read(tmp_path, QWEN_2_LONG)
  assert not caplog.records
  more = {**_YARN, "attn_factor": 0.8782488562869419, "finetuned": True}
  assert read(tmp_path, {**QWEN_2_LONG, "rope_scaling": more}) == expected
  [record] = caplog.records
  assert ("rope_scaling/attn_factor=0.8782488562869419, rope_scaling/finetuned="
          "True: unknown here, and ignored") in record.getMessage()
  # Of two ropes.
  both = NEW_GEMMA_3["rope_parameters"]
  more = {**both, "full_attention": {**both["full_attention"], "beta": 3}}
  assert read(tmp_path, {**NEW_GEMMA_3, "rope_parameters": more}) == read(
      tmp_path, NEW_GEMMA_3)
  assert "rope_scaling/beta=3: unknown" in caplog.records[1].getMessage()


@pytest.mark.parametrize("config, fields, message", [
    (QWEN_2_LONG, {"rope_scaling": {**_YARN, "low_freq_factor": 1.0}},
     "low_freq_factor=1.0 of rope_type='yarn' is not supported"),
    (QWEN_2_LONG, {"rope_scaling": {**_YARN, "truncate": 1}},
     "truncate=1: a value of type bool"),
    (QWEN_2_LONG, {"rope_scaling": {
        **_YARN, "original_max_position_embeddings": 0}},
     "original_max_position_embeddings=0.0: 1 to "),
    (QWEN_2_LONG, {"rope_scaling": {"type": "yarn"}}, "factor must be given"),
    (QWEN_2_LONG, {"original_max_position_embeddings": 8192},
     "original_max_position_embeddings=32768.0 of the rotary embedding "
     "contradicts original_max_position_embeddings=8192.0 of the model"),
    (PHI_3_LONG, {"rope_scaling": {**_LONGROPE, "short_factor": ["1"] * 48}},
     r"short_factor\[0\]='1': a value of type float"),
    (PHI_3_LONG, {"rope_scaling": {**_LONGROPE, "long_mscale": 1.2}},
     "long_mscale=1.2 of rope_type='longrope' is not supported")])
def test_what_is_not_supported_is_refused_by_name(tmp_path, config, fields,
                                                  message):
  with pytest.raises(ValueError, match=message):
    read(tmp_path, {**config, **fields})
