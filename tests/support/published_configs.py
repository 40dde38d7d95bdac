"""`config.json` files as published, and how tests read them."""

import json

from models.huggingface import config as hf_config

LLAMA_2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "tie_word_embeddings": False,
    "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
    "use_cache": True, "vocab_size": 32000}
LLAMA_1 = {k: v for k, v in LLAMA_2.items()
           if k not in ("num_key_value_heads", "rope_scaling",
                        "tie_word_embeddings", "pretraining_tp")}
LLAMA_3_2 = {
    **LLAMA_2, "attention_bias": False, "attention_dropout": 0.0,
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": False,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "vocab_size": 128256}
MISTRAL = {
    **LLAMA_2, "model_type": "mistral", "architectures": ["MistralForCausalLM"],
    "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_key_value_heads": 8, "rope_theta": 10000.0, "sliding_window": 4096,
    "torch_dtype": "bfloat16"}
QWEN_2 = {
    **LLAMA_2, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 21,
    "max_position_embeddings": 32768, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "use_mrope": False,
    "tie_word_embeddings": True, "use_sliding_window": False,
    "vocab_size": 151936}
QWEN_3 = {
    **QWEN_2, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False, "head_dim": 128, "sliding_window": None}
MIMO = {
    **QWEN_2, "model_type": "mimo", "architectures": ["MiMoForCausalLM"],
    "attention_bias": True, "auto_map": {
        "AutoConfig": "configuration_mimo.MiMoConfig",
        "AutoModel": "modeling_mimo.MiMoModel",
        "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"},
    "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11008,
    "max_window_layers": 36, "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1, "rope_theta": 640000,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 151680}
GEMMA = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
    "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0", "use_cache": True,
    "vocab_size": 256000}
GEMMA_2 = {
    **GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
    "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_size": 4608,
    "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 36864,
    "hidden_activation": "gelu_pytorch_tanh", "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16,
    "query_pre_attn_scalar": 144, "sliding_window": 4096,
    "sliding_window_size": 4096}
GEMMA_3 = {
    **GEMMA, "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None, "cache_implementation": "hybrid",
    "eos_token_id": [1, 106], "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "intermediate_size": 6912, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144}
GEMMA_3_IMAGES = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3", "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024},
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"model_type": "siglip_vision_model"}}
OLMO_2 = {
    **LLAMA_2, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 500000,
    "torch_dtype": "float32", "vocab_size": 100352}
# As in the release: transformers 4 has one base for all layers.
OLMO_3 = {
    **OLMO_2, "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"],
    "hidden_size": 4096, "intermediate_size": 11008, "layer_types": [
        *["sliding_attention"] * 3, "full_attention"] * 8,
    "max_position_embeddings": 65536, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "rope_scaling": {
        "attention_factor": 1.2079441541679836, "beta_fast": 32.0,
        "beta_slow": 1.0, "factor": 8.0, "rope_type": "yarn",
        "original_max_position_embeddings": 8192},
    "sliding_window": 4096, "vocab_size": 100278}
PHI_3 = {
    **LLAMA_2, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False, "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "embd_pdrop": 0.0, "hidden_size": 3072, "intermediate_size": 8192,
    "original_max_position_embeddings": 4096, "resid_pdrop": 0.0,
    "rope_theta": 10000.0, "sliding_window": 2047, "torch_dtype": "bfloat16",
    "vocab_size": 32064}
SMOLLM_3 = {
    **LLAMA_2, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False, "hidden_size": 2048, "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_theta": 5000000.0, "sliding_window": None,
    "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 128256}
SMOLLM_3.pop("tie_word_embeddings")
GRANITE = {
    **LLAMA_2, "model_type": "granite", "architectures": ["GraniteForCausalLM"],
    "attention_bias": False, "attention_multiplier": 0.015625,
    "embedding_multiplier": 12.0, "hidden_size": 2048,
    "intermediate_size": 8192, "logits_scaling": 8.0,
    "max_position_embeddings": 131072, "mlp_bias": False,
    "num_hidden_layers": 40, "num_key_value_heads": 8,
    "residual_multiplier": 0.22, "rope_theta": 10000000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "vocab_size": 49159}
MIXTRAL = {
    **MISTRAL, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
    "num_experts_per_tok": 2, "num_local_experts": 8,
    "output_router_logits": False, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None}
QWEN_3_MOE = {
    **QWEN_3, "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1,
    "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128,
    "num_attention_heads": 32, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False}
QWEN_2_MOE = {
    **QWEN_2, "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1,
    "hidden_size": 2048, "intermediate_size": 5632, "max_window_layers": 21,
    "max_position_embeddings": 8192, "mlp_only_layers": [],
    "moe_intermediate_size": 1408, "norm_topk_prob": False,
    "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
    "num_key_value_heads": 16, "output_router_logits": False,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
    "tie_word_embeddings": False}
OLMOE = {
    **OLMO_2, "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"],
    "clip_qkv": None, "intermediate_size": 1024, "norm_topk_prob": False,
    "num_experts": 64, "num_experts_per_tok": 8, "output_router_logits": False,
    "router_aux_loss_coef": 0.01, "vocab_size": 50304}
PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 4096,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 16,
    "num_hidden_layers": 24, "rotary_emb_base": 10000, "rotary_pct": 0.25,
    "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.24.0", "use_cache": True,
    "use_parallel_residual": True, "vocab_size": 50304}
# What transformers 5 writes for it.
NEW_PYTHIA = {
    **{k: v for k, v in PYTHIA.items()
       if not k.startswith(("rotary", "torch"))},
    "attention_bias": True, "dtype": "float16", "rope_parameters": {
        "partial_rotary_factor": 0.25, "rope_theta": 10000.0,
        "rope_type": "default"}}
STARCODER_2 = {
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1,
    "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0,
    "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
    "initializer_range": 0.018042, "intermediate_size": 12288,
    "max_position_embeddings": 16384, "model_type": "starcoder2",
    "norm_epsilon": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 30,
    "num_key_value_heads": 2, "residual_dropout": 0.1,
    "rope_theta": 999999.4420358813, "sliding_window": 4096,
    "torch_dtype": "bfloat16", "use_bias": True, "vocab_size": 49152}
GPT_2 = {
    "_num_labels": 1, "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
    "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
    "label2id": {"LABEL_0": 0}, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 6, "n_positions": 1024, "n_special": 0,
    "predict_special_tokens": True, "resid_pdrop": 0.1,
    "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "task_specific_params": {"text-generation": {}},
    "vocab_size": 50257}
# Of any size, what transformers 4.56 and 5 write for it.
NEW_GEMMA_3 = {
    **{k: v for k, v in GEMMA_3.items() if k not in (
        "torch_dtype", "rope_theta", "rope_scaling", "rope_local_base_freq",
        "sliding_window_pattern", "hidden_act")},
    "_sliding_window_pattern": 6, "dtype": "bfloat16",
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention"
                    for i in range(26)],
    "rope_parameters": {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "tie_word_embeddings": True, "use_bidirectional_attention": False}
LLADA = {
    "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"], "attention_dropout": 0.0,
    "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig",
                 "AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama",
    "d_model": 4096, "embedding_dropout": 0.0, "embedding_size": 126464,
    "eos_token_id": 126081, "flash_attention": False, "include_bias": False,
    "include_qkv_bias": False, "init_cutoff_factor": None,
    "init_device": "meta", "init_fn": "mitchell", "init_std": 0.02,
    "input_emb_norm": False, "layer_norm_type": "rms",
    "layer_norm_with_affine": True, "mask_token_id": 126336,
    "max_sequence_length": 4096, "mlp_hidden_size": 12288, "mlp_ratio": 4,
    "model_type": "llada", "multi_query_attention": None, "n_heads": 32,
    "n_kv_heads": 32, "n_layers": 32, "pad_token_id": 126081,
    "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05,
    "rope": True, "rope_full_precision": True, "rope_theta": 500000.0,
    "scale_logits": False, "use_cache": False, "vocab_size": 126464,
    "weight_tying": False}
DREAM = {
    "architectures": ["DreamModel"], "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig",
                 "AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
    "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "mask_token_id": 151666, "max_position_embeddings": 131072,
    "max_window_layers": 28, "model_type": "Dream", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "pad_token_id": 151643,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 152064}
# 1.7B Chat.
SDAR = {
    "architectures": ["SDARForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_implementation": "flex_attention",
    "auto_map": {"AutoConfig": "configuration_sdar.SDARConfig",
                 "AutoModel": "modeling_sdar.SDARModel",
                 "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
    "block_size": 4, "bos_token_id": 151643, "debug": False,
    "eos_token_id": 151643, "ep_size": 1, "fuse_cross_entropy": True,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144,
    "mask_token_id": 151669, "max_position_embeddings": 32768,
    "max_window_layers": 28, "micro_forward": False, "model_type": "sdar",
    "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "skip_checkpoint": False, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": False, "use_deepep": False, "use_sliding_window": False,
    "vocab_size": 151936}
# A Qwen2.5 whose mask is given by its code alone.
FAST_DLLM = {
    **{name: x for name, x in DREAM.items() if name != "mask_token_id"},
    "architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 32,
    "auto_map": {
        "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
        "AutoModel": "modeling.Fast_dLLM_QwenModel",
        "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM"},
    "layer_types": ["full_attention"] * 28, "max_position_embeddings": 32768,
    "model_type": "Fast_dLLM_Qwen"}
DEEPSEEK_3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
        "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 4,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128,
    "vocab_size": 129280}
KIMI_K2 = {
    **DEEPSEEK_3, "first_k_dense_replace": 1, "model_type": "kimi_k2",
    "max_position_embeddings": 131072, "n_group": 1, "n_routed_experts": 384,
    "num_attention_heads": 64, "num_key_value_heads": 64, "rope_theta": 50000.0,
    "num_nextn_predict_layers": 0, "routed_scaling_factor": 2.827,
    "rope_scaling": {**DEEPSEEK_3["rope_scaling"], "beta_fast": 1.0,
                     "factor": 32.0},
    "seq_aux": True, "topk_group": 1, "vocab_size": 163840}
DEEPSEEK_2_LITE = {
    **{k: v for k, v in DEEPSEEK_3.items() if k != "quantization_config"},
    "architectures": ["DeepseekV2ForCausalLM"], "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 10944, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
    "rope_scaling": {**DEEPSEEK_3["rope_scaling"], "mscale": 0.707,
                     "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
    "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400}
DEEPSEEK_3_2 = {
    **DEEPSEEK_3, "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    "model_type": "deepseek_v32"}
# As transformers 5.24 has these three by default.
GLM_5 = {
    **{k: v for k, v in DEEPSEEK_3_2.items()
       if k not in ("auto_map", "quantization_config", "rope_scaling")},
    "architectures": ["GlmMoeDsaForCausalLM"], "hidden_size": 6144,
    "index_n_heads": 32, "intermediate_size": 12288,
    "max_position_embeddings": 202752, "model_type": "glm_moe_dsa",
    "n_group": 1, "num_attention_heads": 64, "num_hidden_layers": 78,
    "num_key_value_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-05, "topk_group": 1, "v_head_dim": 256,
    "vocab_size": 154880}
GLM_4_7_FLASH = {
    **{k: v for k, v in GLM_5.items()
       if not k.startswith(("index_", "first_k"))},
    "architectures": ["Glm4MoeLiteForCausalLM"], "hidden_size": 2048,
    "intermediate_size": 10240, "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536, "n_routed_experts": 64,
    "num_attention_heads": 20, "num_experts_per_tok": 4,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "q_lora_rank": 768,
    "routed_scaling_factor": 1.8}
YOUTU = {
    "architectures": ["YoutuForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "kv_lora_rank": 512,
    "max_position_embeddings": 131072, "model_type": "youtu",
    "num_attention_heads": 16, "num_hidden_layers": 32,
    "num_key_value_heads": 16, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": True,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 128256}
OPT = {
    "_remove_final_layer_norm": False, "activation_dropout": 0.0,
    "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 2, "hidden_size": 1024,
    "do_layer_norm_before": False, "dropout": 0.1, "eos_token_id": 2,
    "ffn_dim": 4096, "init_std": 0.02, "layerdrop": 0.0, "model_type": "opt",
    "max_position_embeddings": 2048, "num_attention_heads": 16,
    "num_hidden_layers": 24, "pad_token_id": 1, "prefix": "</s>",
    "torch_dtype": "float16", "transformers_version": "4.20.0.dev0",
    "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 512}

QWEN_3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "mlp_only_layers": [],
    "model_type": "qwen3_next", "moe_intermediate_size": 512,
    "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "output_router_logits": False,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936}
# H Micro, of Mamba-2 layers and four of attention.
GRANITE_4_H = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attention_multiplier": 0.015625,
    "bos_token_id": 100257, "embedding_multiplier": 12,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
    "init_method": "mup", "initializer_range": 0.1, "intermediate_size": 8192,
    "layer_types": [*["mamba"] * 5, "attention",
                    *[*["mamba"] * 9, "attention"] * 3, *["mamba"] * 4],
    "logits_scaling": 8, "mamba_chunk_size": 256, "mamba_conv_bias": True,
    "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 64,
    "mamba_proj_bias": False, "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
    "num_attention_heads": 32, "num_experts_per_tok": 0,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 0,
    "output_router_logits": False, "pad_token_id": 100256,
    "position_embedding_type": "nope", "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
    "router_aux_loss_coef": 0.0, "shared_intermediate_size": 8192,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 100352}
_QWEN_3_5_TEXT = {
    "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16",
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 2560, "intermediate_size": 9216, "layer_types": [
        *["linear_attention"] * 3, "full_attention"] * 8,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mlp_only_layers": [], "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1, "num_attention_heads": 16,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default"}, "vocab_size": 248320}
# Of a model with images.
QWEN_3_5 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056, "model_type": "qwen3_5",
    "text_config": _QWEN_3_5_TEXT, "tie_word_embeddings": True,
    "video_token_id": 248057, "vision_config": {"model_type": "qwen3_5"},
    "vision_end_token_id": 248054, "vision_start_token_id": 248053}
QWEN_3_5_TEXT = {
    **_QWEN_3_5_TEXT, "architectures": ["Qwen3_5ForCausalLM"],
    "tie_word_embeddings": True}

ALL = {name: fields for name, fields in globals().items()
       if isinstance(fields, dict) and "model_type" in fields}


def read(folder, fields):
  (folder / hf_config.FILE).write_text(json.dumps(fields))
  return hf_config.read(folder)
