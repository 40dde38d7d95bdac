"""`config.json` of Hugging Face folders."""

import json

import pytest

from models.huggingface import config as hf_config
from support import published_configs as published
from support.published_configs import (
    GEMMA, GEMMA_2, GEMMA_3, GEMMA_3_IMAGES, GPT_2, GRANITE, LLAMA_1, LLAMA_2,
    LLAMA_3_2, MIMO, MISTRAL, MIXTRAL, NEW_GEMMA_3, NEW_PYTHIA, OLMO_2, OLMO_3,
    OLMOE, OPT, PHI_3, PYTHIA, QWEN_2, QWEN_2_MOE, QWEN_3, QWEN_3_MOE, SMOLLM_3,
    STARCODER_2, read)

# Fields that transformers has a default for in each family.
LEFT_OUT = set("""
    attention_bias head_dim hidden_act layer_types linear_conv_kernel_dim
    linear_key_head_dim linear_num_key_heads linear_num_value_heads
    linear_value_head_dim layer_norm_eps max_position_embeddings
    mlp_bias n_positions norm_topk_prob num_experts_per_tok num_key_value_heads
    query_pre_attn_scalar rms_norm_eps rope_scaling rope_theta rotary_emb_base
    mamba_d_conv mamba_d_state mamba_expand mamba_n_groups mamba_n_heads
    num_local_experts rotary_pct shared_intermediate_size sliding_window
    tie_word_embeddings use_sliding_window
    """.split())
# As they are published, but for fields that make no difference to a test.
PUBLISHED = {
    "Llama 1": (LLAMA_1, dict(num_kv_heads=32, head_dim=128, max_length=4096,
                              tie_embeddings=False, dtype="float16")),
    "Llama 2": (LLAMA_2, dict(num_kv_heads=32, head_dim=128, norm_eps=1e-5)),
    "Llama 3.2": (LLAMA_3_2, dict(
        num_kv_heads=8, head_dim=64, rope_scaling="llama3", rope_factor=32,
        rope_original_length=8192, rope_low_turns=1, rope_high_turns=4,
        rope_theta=5e5, tie_embeddings=True, dtype="bfloat16")),
    "Mistral 0.1": (MISTRAL, dict(window=4096, num_kv_heads=8)),
    "Mistral 0.3": ({**MISTRAL, "sliding_window": None}, dict(window=0)),
    "Qwen2.5": (QWEN_2, dict(qkv_bias=True, out_bias=False, window=0,
                             qk_norm=False, head_dim=64)),
    "MiMo 7B": (MIMO, dict(qkv_bias=True, out_bias=False, window=0,
                           rope_theta=6.4e5, head_dim=128)),
    "Qwen3": (QWEN_3, dict(qkv_bias=False, qk_norm=True, head_dim=128)),
    "OLMo 2 1B": (OLMO_2, dict(
        reordered_norm=True, joint_qk_norm=True, qk_norm=False, head_dim=128,
        norm_eps=1e-6, rope_theta=5e5, tie_embeddings=False)),
    "OLMo 3 7B": (OLMO_3, dict(
        reordered_norm=True, joint_qk_norm=True, window=4096, full_every=4,
        rope_scaling="yarn", rope_factor=8, rope_original_length=8192,
        rope_gain=1.2079441541679836, rope_theta=5e5, rope_local_theta=5e5,
        max_length=65536, head_dim=128)),
    "Phi-3 mini 4k": (PHI_3, dict(window=2047, head_dim=96, norm_eps=1e-5)),
    "Phi-4": ({**PHI_3, "sliding_window": None, "auto_map": {}},
              dict(window=0, rope_part=1)),
    "SmolLM3": (SMOLLM_3, dict(
        full_every=4, rope_full=False, window=0, rope_theta=5e6, head_dim=128,
        tie_embeddings=True)),
    "Granite 3.3 2B": (GRANITE, dict(
        embedding_scale=12, residual_scale=0.22, logit_divisor=8,
        query_scalar=4096, head_dim=64, tie_embeddings=True)),
    "Mixtral 8x7B": (MIXTRAL, dict(
        num_experts=8, experts_per_token=2, hidden_dim=14336, window=0,
        normalize_experts=True, qk_norm=False)),
    "Qwen3 30B-A3B": (QWEN_3_MOE, dict(
        num_experts=128, experts_per_token=8, hidden_dim=768, qk_norm=True,
        normalize_experts=True, window=0, head_dim=128, qkv_bias=False)),
    "Qwen1.5 MoE": (QWEN_2_MOE, dict(
        num_experts=60, experts_per_token=4, hidden_dim=1408, shared_dim=5632,
        normalize_experts=False, qkv_bias=True, out_bias=False, window=0,
        qk_norm=False)),
    "OLMoE": (OLMOE, dict(
        num_experts=64, experts_per_token=8, hidden_dim=1024,
        normalize_experts=False, joint_qk_norm=True, reordered_norm=False)),
    "Qwen3-Next 80B-A3B": (published.QWEN_3_NEXT, dict(
        num_experts=512, experts_per_token=10, hidden_dim=512, shared_dim=512,
        full_every=4, linear_key_heads=16, linear_value_heads=32,
        linear_key_dim=128, linear_value_dim=128, linear_conv=4, head_dim=256,
        attention_gate=True, qk_norm=True, norm="rms_plus_one", rope_part=0.25,
        rope_theta=1e7, tie_embeddings=False, embedding_scale=1,
        feed_forward="swiglu")),
    "Granite 4.0 H Micro": (published.GRANITE_4_H, dict(
        linear_layer="mamba2", attention_layers=(5, 15, 25, 35),
        linear_key_heads=1, linear_value_heads=64, linear_key_dim=128,
        linear_value_dim=64, linear_conv=4, positions="none", head_dim=64,
        query_scalar=4096, hidden_dim=8192, num_experts=0, embedding_scale=12,
        residual_scale=0.22, logit_divisor=8, tie_embeddings=True)),
    "Qwen3.5 4B": (published.QWEN_3_5, dict(
        dim=2560, num_experts=0, hidden_dim=9216, full_every=4, rope_part=0.25,
        linear_key_heads=16, linear_value_heads=32, rope_theta=1e7,
        tie_embeddings=True, max_length=262144, dtype="bfloat16")),
    "Qwen3.5 4B, text": (published.QWEN_3_5_TEXT, dict(
        dim=2560, hidden_dim=9216, full_every=4, tie_embeddings=True)),
    "Pythia 410M": (PYTHIA, dict(
        norm="layer", positions="rope", feed_forward="erf_gelu", parallel=True,
        rope_part=0.25, qkv_bias=True, out_bias=True, feed_forward_bias=True,
        head_dim=64, num_kv_heads=16, hidden_dim=4096, tie_embeddings=False)),
    "StarCoder2 3B": (STARCODER_2, dict(
        norm="layer", positions="rope", feed_forward="gelu", parallel=False,
        rope_part=1, bias=True, head_dim=128, num_kv_heads=2, window=4096,
        rope_theta=999999.4420358813, tie_embeddings=True)),
    "OPT-350m": (OPT, dict(post_norm=True, embedding_dim=512, bias=True,
                           norm="layer", positions="learned",
                           feed_forward="relu", tie_embeddings=True,
                           hidden_dim=4096, head_dim=64)),
    "OPT": ({**OPT, "do_layer_norm_before": True, "word_embed_proj_dim": 1024},
            dict(post_norm=False, embedding_dim=0)),
    "Gemma 2B": (GEMMA, dict(
        head_dim=256, num_kv_heads=1, norm="rms_plus_one", norm_eps=1e-6,
        feed_forward="geglu", tie_embeddings=True, embedding_scale=2048**0.5,
        sandwich_norm=False, window=0, query_scalar=0, dtype="bfloat16")),
    "Gemma 2 27B": (GEMMA_2, dict(
        head_dim=128, sandwich_norm=True, qk_norm=False, attention_softcap=50,
        logit_softcap=30, query_scalar=144, window=4096, full_every=2,
        rope_theta=1e4, rope_local_theta=0)),
    "Gemma 3 1B": (GEMMA_3, dict(
        head_dim=256, sandwich_norm=True, qk_norm=True, attention_softcap=0,
        logit_softcap=0, query_scalar=0, window=512, full_every=6,
        rope_theta=1e6, rope_local_theta=1e4, rope_scaling="none")),
    "Gemma 3 4B": (GEMMA_3_IMAGES, dict(
        vocab_size=262208, dim=2560, num_layers=34, num_heads=8, num_kv_heads=4,
        head_dim=256, max_length=131072, query_scalar=0, window=1024,
        full_every=6, rope_theta=1e6, rope_local_theta=1e4, norm_eps=1e-6,
        rope_scaling="linear", rope_factor=8, dtype="bfloat16",
        tie_embeddings=True)),
    "DistilGPT-2": (GPT_2, dict(
        dim=768, num_layers=6, num_heads=12, num_kv_heads=12, head_dim=64,
        hidden_dim=3072, max_length=1024, norm="layer", positions="learned",
        feed_forward="gelu", bias=True, tie_embeddings=True, norm_eps=1e-5)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(tmp_path, name):
  fields, expected = PUBLISHED[name]
  config = read(tmp_path, fields)
  assert {k: getattr(config, k) for k in expected} == expected
  for theirs, ours in (("vocab_size", "vocab_size"), ("hidden_size", "dim")):
    assert theirs not in fields or fields[theirs] == getattr(config, ours)


@pytest.mark.parametrize("fields, name, expected", [
    (MISTRAL, "sliding_window", dict(window=4096)),
    (MIXTRAL, "rope_theta", dict(rope_theta=1e6)),
    ({**QWEN_3, "hidden_size": 1792}, "head_dim", dict(head_dim=128)),
    (GEMMA_2, "query_pre_attn_scalar", dict(query_scalar=256)),
    (LLAMA_2, "max_position_embeddings", dict(max_length=2048))])
def test_a_field_that_is_left_out(tmp_path, fields, name, expected):
  config = read(tmp_path, {k: v for k, v in fields.items() if k != name})
  assert {k: getattr(config, k) for k in expected} == expected


def parsed(fields):
  """Returns the architecture, or "" where it is refused."""
  try:
    return hf_config.parse("config.json", fields)
  except ValueError:
    return ""


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(
    PUBLISHED.keys() - {"MiMo 7B", "Gemma 3 4B", "Qwen3.5 4B"}))
def test_fields_that_are_left_out_are_as_in_transformers(name):
  transformers = pytest.importorskip(
      "transformers", reason="needs pip install -e '.[parity]'")
  from huggingface_hub import errors  # pylint: disable=import-outside-toplevel
  given = json.loads(json.dumps(PUBLISHED[name][0]))
  config = type(transformers.AutoConfig.for_model(given["model_type"]))
  compared = 0
  for left in given.keys() & LEFT_OUT:
    fields = {k: v for k, v in given.items() if k != left}
    try:
      whole = config(**{k: v for k, v in fields.items()
                        if k not in ("architectures", "model_type")}).to_dict()
    except errors.StrictDataclassError:
      assert not parsed(fields), left  # They refuse it, and so do we.
      continue
    whole["architectures"] = given["architectures"]
    ours = parsed(fields)
    assert ours == parsed(json.loads(json.dumps(whole))), left
    compared += ours != ""
  assert compared


@pytest.mark.parametrize("scaling", [
    None, {"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 4},
    LLAMA_3_2["rope_scaling"]])
def test_both_ways_to_tell_the_rotary_embedding(tmp_path, scaling):
  old = {**LLAMA_3_2, "rope_scaling": scaling}
  new = {k: v for k, v in old.items()
         if k not in ("rope_scaling", "rope_theta")}
  new["dtype"] = new.pop("torch_dtype")
  parameters = dict(scaling or {"rope_type": "default"}, rope_theta=500000.0)
  parameters.setdefault("rope_type", parameters.pop("type", None))
  new["rope_parameters"] = parameters
  assert read(tmp_path, old) == read(tmp_path, new)
  assert read(tmp_path, old).rope_theta == 5e5


def without(fields, *names, **more):
  return {**{k: v for k, v in fields.items() if k not in names}, **more}


_LINEAR = {"rope_type": "linear", "factor": 8.0}
_GEMMA_ROPE = NEW_GEMMA_3["rope_parameters"]
_OLMO_ROPE = {"full_attention": {**OLMO_3["rope_scaling"], "rope_theta": 5e5},
              "sliding_attention": {"rope_theta": 5e5}}
_NO_ROPE = without(SMOLLM_3, "no_rope_layers", "no_rope_layer_interval")
# Fields of one architecture, told in two ways.
SAME = {
    "Pythia": (PYTHIA, NEW_PYTHIA),
    "scaled Pythia": (
        {**PYTHIA, "rope_scaling": {**_LINEAR, "rope_theta": 1e4}},
        {**NEW_PYTHIA, "rope_parameters": {
            **_LINEAR, "rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
    "number of experts": (QWEN_3_MOE, without(QWEN_3_MOE, "num_experts",
                                              num_local_experts=128)),
    "layers of SmolLM3": (SMOLLM_3, _NO_ROPE),
    "layers of Gemma 3": (GEMMA_3, NEW_GEMMA_3),
    "scaled Gemma 3": (
        {**GEMMA_3, "rope_scaling": _LINEAR},
        {**NEW_GEMMA_3, "rope_parameters": {**_GEMMA_ROPE, "full_attention": {
            **_GEMMA_ROPE["full_attention"], **_LINEAR}}}),
    "layers of OLMo 3": (OLMO_3, without(
        OLMO_3, "layer_types", "rope_scaling", "rope_theta",
        rope_parameters=_OLMO_ROPE)),
    "both": (OLMO_3, {**OLMO_3, "rope_parameters": _OLMO_ROPE}),
    "layers that no field tells": (
        OLMO_3, without(OLMO_3, "layer_types", "rope_theta"))}


@pytest.mark.parametrize("name", SAME)
def test_two_ways_to_tell_the_same(tmp_path, name):
  one, other = SAME[name]
  assert read(tmp_path, one) == read(tmp_path, other)


def test_layers_that_rotate_or_see_everything(tmp_path):
  assert read(tmp_path, {
      **_NO_ROPE, "no_rope_layer_interval": 6}).full_every == 6
  rotated = read(tmp_path, {**SMOLLM_3, "no_rope_layers": [1] * 36})
  assert rotated.full_every == 0 and rotated.rope_full
  full = read(tmp_path, {**OLMO_3, "layer_types": ["full_attention"] * 32})
  assert (full.window, full.full_every) == (0, 0)


@pytest.mark.parametrize("config, fields, message", [
    (LLAMA_2, {"rope_scaling": {"type": "su", "factor": 2.0}},
     "rope_type='su' is not one of"),
    (LLAMA_2, {"rope_scaling": {"type": "linear", "factor": "2"}},
     "factor='2': a value of type float"),
    (LLAMA_2, {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 9}},
     "alpha=9 of rope_type='linear'"),
    (LLAMA_2, {"rope_parameters": {"partial_rotary_factor": 0.5}},
     "partial_rotary_factor=0.5"),
    (LLAMA_2, {"rope_scaling": {"type": "linear", "factor": 2.0},
               "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
     "rope_scaling=.*contradicts rope_parameters="),
    (LLAMA_2, {"architectures": ["LlamaModel"]},
     r"architectures=\['LlamaModel'\] of llama"),
    (QWEN_2, {"use_sliding_window": True, "sliding_window": 64},
     r"layer_types=\['full_attention', .*'sliding_attention'"),
    (QWEN_3, {"layer_types": ["chunked_attention"] * 24},
     r"layer_types=\['chunked_attention'"),
    (PHI_3, {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
     "long_factor must be given"),
    (PHI_3, {"auto_map": {"AutoConfig": "own.Config"}},
     "auto_map: own.Config of phi3"),
    (MIMO, {"auto_map": {"AutoConfig": "own.Config"}},
     "auto_map: own.Config of mimo"),
    (SMOLLM_3, {"no_rope_layers": [0, 1, 1, 1] * 9},
     r"no_rope_layers=\[0, 1, .*: 36 are needed, of which every n-th is 0"),
    (OLMO_3, {"layer_types": ["full_attention", "sliding_attention"] * 16},
     "layer_types=.* of olmo3: 32 are needed, of which every n-th is full_"),
    (OLMO_3, {"rope_parameters": {"sliding_attention": {
        "rope_type": "linear", "factor": 2.0}}},
     "rope_type='linear' of sliding_attention is not supported"),
    (QWEN_2_MOE, {"layer_types": ["sliding_attention"] * 24},
     "layer_types=.* of qwen2_moe"),
    (PYTHIA, {"rope_parameters": {"rope_theta": 500.0},
              "rope_scaling": {"type": "linear", "factor": 2.0}},
     "rope_scaling=.*contradicts rope_parameters="),
    (GEMMA_2, {"sliding_window": None, "sliding_window_size": None},
     "sliding_window must be given"),
    (GEMMA_2, {"layer_types": ["full_attention"] + ["sliding_attention"] * 45},
     "46 are needed, of which every n-th is full_attention"),
    (GEMMA_2, {"layer_types": ["chunked_attention"] * 46}, "46 are needed"),
    (GEMMA_3, {"rope_parameters": {"rope_type": "default"}},
     "full_attention and sliding_attention are needed, not rope_type"),
    (NEW_GEMMA_3, {"rope_parameters": {
        "sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
     "rope_type='linear' of sliding_attention is not supported"),
    (GEMMA_3_IMAGES, {"text_config": {"model_type": "gemma2"}},
     "model_type='gemma2' of gemma3 is not supported"),
    (GEMMA_3_IMAGES, {"architectures": ["Gemma3ForCausalLM"]},
     r"architectures=\['Gemma3ForCausalLM'\] of gemma3")])
def test_what_is_not_supported_is_refused_by_name(tmp_path, config, fields,
                                                  message):
  with pytest.raises(ValueError, match=message):
    read(tmp_path, {**config, **fields})


@pytest.mark.parametrize("config, field, value, message", [
    (LLAMA_2, "hidden_act", "gelu", "='gelu' of llama is not .*; 'silu' is"),
    (LLAMA_2, "quantization_config", {"bits": 4}, r"=\{'bits': 4\}"),
    (LLAMA_2, "sliding_window", 1024, "=1024 of llama"),
    (LLAMA_2, "logit_softcapping", 30.0, "=30.0 of llama"),
    (LLAMA_2, "auto_map", {"A": "own.A"}, r"=\{.*\} of llama .*; None is"),
    (LLAMA_2, "model_type", "gemma4", "='gemma4' is not one of"),
    (LLAMA_2, "num_hidden_layers", 0, "=0: 1 to 1024 is"),
    (LLAMA_2, "num_key_value_heads", 5, "num_kv_heads=5 does not divide"),
    (LLAMA_2, "torch_dtype", "int8", "dtype='int8' is not one of"),
    (LLAMA_1, "num_attention_heads", 33, "=33 does not"),
    (PHI_3, "partial_rotary_factor", 0.01, "rope_part=0.01: of head_dim=96"),
    (QWEN_3, "partial_rotary_factor", 0.75, "=0.75 of qwen3 is not .*; 1.0 is"),
    (SMOLLM_3, "no_rope_layers", [1, 1, 1, 0], "36 are needed"),
    (GRANITE, "attention_multiplier", 0, "=0.0: 1e-09"),
    (OLMO_2, "sliding_window", 5, "=5 of olmo2"),
    (QWEN_3, "num_experts", 4, "=4 of qwen3"),
    (MIXTRAL, "num_local_experts", None, " must be given"),
    (MIXTRAL, "num_experts_per_tok", 9, "experts_per_token=9, .* 1 to num_"),
    (QWEN_3_MOE, "decoder_sparse_step", 2, "=2 of qwen3"),
    (QWEN_3_MOE, "mlp_only_layers", [0], r"=\[0\] of qwen3_"),
    (QWEN_3_MOE, "shared_expert_intermediate_size", 64, "=64 of qwen3_moe"),
    (QWEN_2_MOE, "decoder_sparse_step", 2, "=2 of qwen2"),
    (QWEN_2_MOE, "use_sliding_window", True, "=True of qwen2_moe"),
    (OLMOE, "clip_qkv", 8.0, "=8.0 of olmoe"),
    (PYTHIA, "hidden_act", "relu", "='relu' of gpt_neox is not supported; "
     "'gelu_pytorch_tanh' or"),
    (STARCODER_2, "hidden_act", "gelu", "='gelu' of starcoder2 is not"),
    (OPT, "activation_function", "gelu", "='gelu' of opt is not .*; 'relu' is"),
    (GEMMA, "hidden_act", "gelu_python", "='gelu_python' of gemma is not "
     "supported; 'gelu_pytorch_tanh' or 'gelu' is"),
    (GEMMA, "hidden_activation", "gelu", "='gelu' of gemma"),
    (GEMMA, "sliding_window", 5, "=5 of gemma"),
    (GEMMA_2, "use_bidirectional_attention", True, "=True of gemma2"),
    (GEMMA_2, "sliding_window_size", 5, "=5 of gemma2"),
    (GEMMA_3, "attn_logit_softcapping", 50.0, "=50.0 of gemma3_text .*; None"),
    (GPT_2, "activation_function", "gelu", "='gelu' of gpt2 .*; 'gelu_new' or"),
    (GPT_2, "scale_attn_by_inverse_layer_idx", True, "=True of gpt2"),
    (GPT_2, "scale_attn_weights", False, "=False of gpt2"),
    (GPT_2, "add_cross_attention", True, "=True of gpt2"),
    (GPT_2, "n_ctx", 512, "=512 of gpt2 is not supported; 1024 is"),
    (GPT_2, "hidden_size", 768, "=768 of gpt2"),
    (OPT, "_remove_final_layer_norm", True, "=True"),
    (OPT, "layer_norm_elementwise_affine", False, "=False")])
def test_a_value_that_is_not_supported(tmp_path, config, field, value, message):
  name = field if message[0] in "= " else ""
  with pytest.raises(ValueError, match=name + message):
    read(tmp_path, {**config, field: value})


def test_notes_change_nothing(tmp_path, caplog):
  # As in the files of SmolLM2, and of folders that tools have written.
  notes = {"is_llama_config": True, "rope_interleaved": False, "_commit": "4e2",
           "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
           "unk_token_id": 0, "use_alibi": False, "auto_map": None,
           "problem_type": None}
  assert read(tmp_path, {**LLAMA_2, **notes}) == read(tmp_path, LLAMA_2)
  assert not caplog.records


def test_what_is_unknown_is_told_once(tmp_path, caplog):
  fields = {**LLAMA_2, "use_sdpa": True, "paper": "2402.14160"}
  assert read(tmp_path, fields) == read(tmp_path, LLAMA_2) == read(
      tmp_path, fields)
  [record] = caplog.records
  assert ("config.json': paper='2402.14160', use_sdpa=True: unknown here"
          in record.getMessage())


def test_a_window_of_all_layers(tmp_path):
  fields = {**QWEN_2, "use_sliding_window": True, "sliding_window": 64,
            "max_window_layers": 0}
  assert read(tmp_path, fields).window == 64
  assert read(tmp_path, {**fields, "max_window_layers": 24}).window == 0


def test_missing_fields_and_files(tmp_path):
  with pytest.raises(FileNotFoundError, match="no config.json"):
    hf_config.read(tmp_path)
  with pytest.raises(ValueError, match="hidden_size must be given"):
    read(tmp_path, {k: v for k, v in LLAMA_2.items() if k != "hidden_size"})
  (tmp_path / hf_config.FILE).write_text("{")
  with pytest.raises(ValueError, match="is not a JSON object"):
    hf_config.read(tmp_path)
