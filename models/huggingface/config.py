"""Reads and writes the `config.json` of Hugging Face folders.

Each field is read, known to be irrelevant, or refused if some family's
computation depends on it. A warning names other fields, which transformers
ignores.
"""

import dataclasses
import functools
import pathlib

from absl import logging

from models import transformer
from models.folders import json_files
from models.gguf import config as gguf_config
from models.gguf import files as gguf_files
from models.huggingface import block_scales
from models.huggingface import config_fields
from models.huggingface import deepseek
from models.huggingface import gemma
from models.huggingface import granite_hybrid
from models.huggingface import llama
from models.huggingface import masked
from models.huggingface import neox
from models.huggingface import opt
from models.huggingface import qwen3_next
from models.huggingface import tensor_files

FILE = tensor_files.CONFIG
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM", "granite": "GraniteForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM", "olmoe": "OlmoeForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
    "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    granite_hybrid.FAMILY: "GraniteMoeHybridForCausalLM",
    qwen3_next.NEXT: "Qwen3NextForCausalLM",
    qwen3_next.DENSE: "Qwen3_5ForCausalLM",
    qwen3_next.WHOLE: "Qwen3_5ForConditionalGeneration",
    "opt": "OPTForCausalLM", "gpt2": "GPT2LMHeadModel", **deepseek.FAMILIES,
    masked.LLADA: "LLaDAModelLM", masked.DREAM: "DreamModel",
    masked.SDAR: "SDARForCausalLM",
    masked.FAST: "Fast_dLLM_QwenForCausalLM"}

# For training, for generation, for other libraries, or just notes; and what
# changes nothing but rounding. Beside these, names that begin with "_" or have
# a "." in them, and whatever is off or empty.
_HARMLESS = frozenset("""
    activation_dropout attention_dropout attn_pdrop bos_token_id
    cache_implementation classifier_dropout do_sample dropout embd_pdrop
    embedding_dropout eos_token_id gradient_checkpointing hidden_dropout
    id2label init_std initializer_range is_llama_config
    label2id layerdrop max_length max_sequence_length mtp_num_hidden_layers
    name_or_path num_nextn_predict_layers
    output_attentions output_hidden_states output_past output_router_logits
    pad_token_id predict_special_tokens prefix pretraining_tp
    reorder_and_upcast_attn resid_pdrop residual_dropout return_dict
    router_aux_loss_coef router_jitter_noise summary_activation
    summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params
    temperature torchscript top_k top_p transformers_version unk_token_id
    unsloth_fixed unsloth_version use_cache
    """.split())
# These change the computation, unless they have this value.
_ONLY = {
    "_remove_final_layer_norm": False, "add_cross_attention": False,
    "auto_map": None, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "hidden_act": "silu",
    "is_decoder": False, "is_encoder_decoder": False,
    "layer_norm_elementwise_affine": True, "n_special": 0,
    "partial_rotary_factor": 1.0, "pruned_heads": {},
    "quantization_config": None, "rope_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "tie_encoder_decoder": False, "use_bfloat16": False, "use_mrope": False}
# These change it in some family; here they would say that it is another one.
_ELSEWHERE = frozenset("""
    alibi attention_multiplier attention_sink attn_logit_softcapping clip_qkv
    embedding_multiplier final_logit_softcapping hidden_size layer_types
    logit_scale logit_softcapping logits_scaling no_rope_layers num_experts
    num_experts_per_tok num_local_experts parallel_residual qk_layernorm
    query_pre_attn_scalar residual_multiplier rotary_dim rotary_pct
    shared_expert_intermediate_size sliding_window sliding_window_pattern
    sliding_window_size use_parallel_residual use_qk_norm
    """.split())
# What all families have, as `transformer.Config` calls it; GPT-2 has own names.
_SIZES = {"vocab_size": "vocab_size", "dim": "hidden_size",
          "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
          "max_length": "max_position_embeddings"}
_GPT2_SIZES = {"vocab_size": "vocab_size", "dim": "n_embd",
               "num_layers": "n_layer", "num_heads": "n_head",
               "max_length": "n_positions"}
# What transformers takes for a field that a file leaves out, by family. Null is
# no such field: a Mistral with "sliding_window": null has no window.
_LENGTH, _KEY_HEADS = "max_position_embeddings", "num_key_value_heads"
_QWEN_2 = {_LENGTH: 32768, _KEY_HEADS: 32}
_GEMMA_2 = {_LENGTH: 8192, _KEY_HEADS: 4, "query_pre_attn_scalar": 256,
            "sliding_window": 4096}
_DEFAULTS = {
    **deepseek.DEFAULTS,
    **dict.fromkeys(("llama", "olmo2", "granite", "gpt_neox", "opt"),
                    {_LENGTH: 2048}),
    **dict.fromkeys(("olmoe", "phi3", "starcoder2"), {_LENGTH: 4096}),
    "olmo3": {_LENGTH: 2048, "sliding_window": 4096},
    "mistral": {_LENGTH: 131072, _KEY_HEADS: 8, "sliding_window": 4096},
    "mixtral": {_LENGTH: 131072, _KEY_HEADS: 8, "num_local_experts": 8},
    "qwen2": _QWEN_2, "mimo": _QWEN_2, "qwen3": {**_QWEN_2, "head_dim": 128},
    "qwen2_moe": {_LENGTH: 32768, _KEY_HEADS: 16},
    **dict.fromkeys(("qwen3_moe", "smollm3"), {_LENGTH: 32768, _KEY_HEADS: 4}),
    "gemma": {_LENGTH: 8192, _KEY_HEADS: 16}, "gemma2": _GEMMA_2,
    "gemma3_text": {**_GEMMA_2, _LENGTH: 131072}, "gpt2": {"n_positions": 1024},
    **qwen3_next.DEFAULTS, granite_hybrid.FAMILY: granite_hybrid.DEFAULTS}
# Of models with images: family, fields of images, and defaults of their text.
_TEXT_PARTS = {
    "gemma3": ("gemma3_text", gemma.IMAGES, gemma.TEXT),
    qwen3_next.WHOLE: (qwen3_next.DENSE, qwen3_next.IMAGES, {})}
# Modules that read and write `config.json`; others are Llama's kin.
_MODULES = {**dict.fromkeys(("gemma", "gemma2", "gemma3_text"), gemma),
            **dict.fromkeys(("opt", "gpt2"), opt),
            **dict.fromkeys(("gpt_neox", "starcoder2"), neox),
            **dict.fromkeys((qwen3_next.NEXT, qwen3_next.DENSE), qwen3_next),
            **dict.fromkeys(masked.FAMILIES, masked),
            granite_hybrid.FAMILY: granite_hybrid,
            **dict.fromkeys(deepseek.FAMILIES, deepseek)}


def is_hf(folder) -> bool:
  """Returns whether a folder is one of transformers, or a GGUF file."""
  if gguf_files.is_gguf(folder):
    return True
  path = pathlib.Path(folder) / FILE
  return path.is_file() and "model_type" in json_files.read(path)


def read(folder) -> transformer.Config:
  """Reads the architecture of a folder of transformers 4 or 5, or a GGUF file.
  Raises FileNotFoundError; and ValueError, naming a field and its value."""
  path = pathlib.Path(folder) / FILE
  if gguf_files.is_gguf(folder):
    path = pathlib.Path(folder)
    fields = gguf_config.fields(path)
  elif path.is_file():
    fields = json_files.read(path)
  else:
    raise FileNotFoundError(f"Checkpoint '{folder}': no {FILE} in it.")
  return parse(path, fields)


def parse(path, fields: dict) -> transformer.Config:
  """Returns the `Config` of a `config.json`, whose path errors name."""
  with json_files.naming(path):
    config, unknown = _parse(fields)
  if unknown:
    _warn(f"'{path}': {', '.join(unknown)}: unknown here, and ignored, as "
          "transformers ignores what it does not know.")
  return config


@functools.lru_cache(maxsize=None)
def _warn(message):
  """Warns once for each message: a file is read several times."""
  logging.warning(message)


def _parse(fields):
  """Returns a `Config`, and "name=value" of each field that is unknown."""
  fields = dict(fields)
  family = config_fields.take(fields, "model_type")
  if family not in ARCHITECTURES:
    raise ValueError(f"model_type={family!r} is not one of "
                     f"{sorted(ARCHITECTURES)}.")
  architectures = fields.pop("architectures", None)
  if architectures not in (None, [ARCHITECTURES[family]]):
    raise ValueError(
        f"architectures={json_files.shown(architectures)} of {family}: "
        f"[{ARCHITECTURES[family]!r}] is supported.")
  if family in _TEXT_PARTS:
    family, fields = _text_part(fields, family)
  fields = {**_DEFAULTS.get(family, {}), **fields}
  if block_scales.is_known(fields.get(block_scales.FIELD)):
    del fields[block_scales.FIELD]
  common = _common(fields, _sizes(family))
  own = _MODULES.get(family, llama).parse(fields, family, common)
  config = config_fields.architecture({"family": family, **common, **own})
  unknown = []
  for name, value in sorted(fields.items()):
    if name in _ONLY and _ONLY[name] != value:
      raise ValueError(
          f"{name}={json_files.shown(value)} of {family} is not supported; "
          f"{_ONLY[name]!r} is.")
    if name in _ELSEWHERE and value:
      raise ValueError(
          f"{name}={json_files.shown(value)} of {family} is not supported.")
    if value and not (name in _HARMLESS or name in _ONLY
                      or name.startswith("_") or "." in name):
      unknown.append(
          f"{json_files.shown(name)[1:-1]}={json_files.shown(value)}")
  return config, unknown


def _text_part(fields, family):
  """Returns family and fields of the text of a model with images."""
  own, images, defaults = _TEXT_PARTS[family]
  fields = {name: x for name, x in fields.items() if name not in images}
  text = dict(config_fields.take(fields, "text_config"))
  config_fields.take_one_of(text, "model_type", family, (own,))
  text.pop("architectures", None)
  return own, {**defaults, **text, **fields}


def _common(fields, sizes):
  """Reads what all families have."""
  dtype = config_fields.take(fields, "torch_dtype", None)
  dtype = config_fields.take(fields, "dtype", dtype) or "float32"
  return {"dtype": dtype.removeprefix("torch."),
          **{ours: config_fields.take(fields, theirs)
             for ours, theirs in sizes.items()}}


def _sizes(family):
  return {"gpt2": _GPT2_SIZES, masked.LLADA: masked.LLADA_SIZES}.get(
      family, _SIZES)


def fields(config: transformer.Config) -> dict:
  """Returns the `config.json` of an architecture, for transformers 4 and 5.
  Raises ValueError for a field that the format of its family would lose."""
  name = config.family
  module = _MODULES.get(name, llama if name in llama.FAMILIES else masked)
  if module is masked:
    raise ValueError(f"family={name!r} is none that is written; one of "
                     f"{sorted(set(ARCHITECTURES) - set(masked.FAMILIES))} is.")
  written = {"model_type": name, "architectures": [ARCHITECTURES[name]],
             **{theirs: getattr(config, ours)
                for ours, theirs in _sizes(name).items()},
             "tie_word_embeddings": config.tie_embeddings,
             "torch_dtype": config.dtype, **module.own_fields(config)}
  given = dataclasses.replace(config, scan_layers=False)
  again, _ = _parse(written)
  if config.rope_scaling == "longrope" and (
      config.max_length > config.rope_original_length):
    # The only factors of so long a text are for all texts in the file.
    given = dataclasses.replace(
        given, rope_short_factors=config.rope_long_factors)
  for field, value in dataclasses.asdict(given).items():
    if value != getattr(again, field):
      raise ValueError(f"{field}={value!r} does not fit a Hugging Face model "
                       f"of type {name}; {getattr(again, field)!r} does. "
                       "Another `family` may fit.")
  return written
