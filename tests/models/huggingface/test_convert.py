"""Parity with `transformers` on small random models of every family."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as tokenizers_lib

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib
from experiments.app import launch
from experiments.devices import model_pair
from models import checkpoints, transformer
from models.huggingface import tensor_files
from models.text import tokenizers
from support import helpers, tiny_models as tiny

torch = pytest.importorskip("torch", reason="needs pip install -e '.[parity]'")
transformers = pytest.importorskip(
    "transformers", reason="needs pip install -e '.[parity]'")

pytestmark = pytest.mark.long

torch.set_num_threads(1)  # Threads take longer than such small products.
_SMALL = dict(vocab_size=29, hidden_size=16, num_hidden_layers=2,
              num_attention_heads=4, max_position_embeddings=96)
_LLAMA = dict(**_SMALL, intermediate_size=24, num_key_value_heads=2)
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
# Planes of all kinds: as they are, interpolated, and between.
_YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5,
         "original_max_position_embeddings": 16, "rope_theta": 30.0}
_LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.2, 1.1, 1.4],
             "long_factor": [1.5, 3.0, 7.0, 2.0], "rope_theta": 100.0}
_OLMO_3 = dict(
    _LLAMA, num_hidden_layers=3, sliding_window=3, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"])
_QWEN_2_MOE = dict(
    _LLAMA, moe_intermediate_size=12, shared_expert_intermediate_size=20,
    num_experts=5, num_experts_per_tok=2)
_PHI_3 = dict(_LLAMA, hidden_size=32, rope_parameters=_LONGROPE,
              original_max_position_embeddings=80)
_GEMMA = dict(_LLAMA, head_dim=6)
# Scores and logits are bent where it can be felt.
_GEMMA_2 = dict(_GEMMA, num_hidden_layers=3, query_pre_attn_scalar=5,
                sliding_window=3, attn_logit_softcapping=2.0,
                final_logit_softcapping=6.0)
_GEMMA_3 = dict(_GEMMA, num_hidden_layers=3, query_pre_attn_scalar=4,
                sliding_window=3, sliding_window_pattern=2, rope_theta=500.0,
                rope_local_base_freq=20.0)
# A layer of each kind, and heads of values in groups.
_QWEN_3_NEXT = dict(
    _LLAMA, head_dim=8, num_hidden_layers=3, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=9,
    linear_conv_kernel_dim=4, layer_types=[
        "linear_attention", "full_attention", "linear_attention"])
_GRANITE_4_H = dict(
    _LLAMA, num_hidden_layers=3, num_local_experts=0, num_experts_per_tok=0,
    shared_intermediate_size=20, mamba_n_heads=4, mamba_n_groups=1,
    mamba_d_state=6, layer_types=[
        "linear_attention", "full_attention", "linear_attention"],
    embedding_multiplier=3.0, residual_multiplier=0.6,
    attention_multiplier=0.3, logits_scaling=0.5)
_OPT = dict(**_SMALL, ffn_dim=24)
_GPT_2 = dict(vocab_size=29, n_embd=16, n_layer=2, n_head=4, n_positions=96)
# Family and fields of each variant.
VARIANTS = {
    "llama-1": ("Llama", dict(_LLAMA, num_key_value_heads=4)),
    "llama-2 gqa": ("Llama", _LLAMA),
    "llama tied": ("Llama", dict(_LLAMA, tie_word_embeddings=True)),
    "llama head_dim": ("Llama", dict(_LLAMA, head_dim=6)),
    "llama biased": ("Llama", dict(_LLAMA, attention_bias=True, mlp_bias=True)),
    "llama theta": ("Llama", dict(_LLAMA, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0})),
    "llama-3": ("Llama", dict(_LLAMA, rope_parameters={
        **_LLAMA3, "rope_theta": 500000.0})),
    "llama linear": ("Llama", dict(_LLAMA, rope_parameters={
        "rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0})),
    "llama dynamic": ("Llama", dict(_LLAMA, rope_parameters={
        "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})),
    "llama yarn": ("Llama", dict(_LLAMA, head_dim=10, rope_parameters=_YARN)),
    "llama longrope": ("Llama", dict(_LLAMA, head_dim=8, rope_parameters=dict(
        _LONGROPE, attention_factor=1.3,
        original_max_position_embeddings=80))),
    "mistral": ("Mistral", dict(_LLAMA, sliding_window=None)),
    "mistral window": ("Mistral", dict(_LLAMA, sliding_window=3)),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen2 window": ("Qwen2", dict(
        _LLAMA, use_sliding_window=True, sliding_window=4,
        max_window_layers=0)),
    "qwen3": ("Qwen3", dict(_LLAMA, head_dim=8)),
    "qwen3 tied, biased": ("Qwen3", dict(
        _LLAMA, head_dim=4, attention_bias=True, tie_word_embeddings=True)),
    "qwen3 yarn of DeepSeek": ("Qwen3", dict(
        _LLAMA, head_dim=16, rope_parameters=dict(
            _YARN, mscale=1.0, mscale_all_dim=0.4, truncate=False))),
    "olmo-2": ("Olmo2", _LLAMA),
    "olmo-3": ("Olmo3", _OLMO_3),
    "olmo-3 yarn": ("Olmo3", dict(_OLMO_3, rope_parameters={
        "full_attention": _YARN, "sliding_attention": {
            "rope_type": "default", "rope_theta": 20.0}})),
    "olmo-3 windows": ("Olmo3", dict(
        _OLMO_3, layer_types=["sliding_attention"] * 3,
        rope_scaling={k: v for k, v in _YARN.items() if k != "rope_theta"})),
    "olmo-3 without windows": ("Olmo3", dict(
        _OLMO_3, layer_types=["full_attention"] * 3)),
    "phi-3": ("Phi3", _LLAMA),
    "phi-3 window": ("Phi3", dict(_LLAMA, sliding_window=3)),
    "phi-3 long": ("Phi3", dict(_PHI_3, sliding_window=90)),
    "phi-4 mini": ("Phi3", dict(
        _PHI_3, hidden_size=48, rope_parameters=dict(
            _LONGROPE, partial_rotary_factor=0.7),
        tie_word_embeddings=True)),
    "smollm3": ("SmolLM3", dict(
        _LLAMA, num_hidden_layers=3, no_rope_layer_interval=2)),
    "smollm3 yarn": ("SmolLM3", dict(
        _LLAMA, num_hidden_layers=3, no_rope_layer_interval=2,
        rope_parameters=dict(_YARN, attention_factor=1.5))),
    "granite": ("Granite", dict(
        _LLAMA, embedding_multiplier=3.0, residual_multiplier=0.6,
        attention_multiplier=0.3, logits_scaling=0.5)),
    "mixtral": ("Mixtral", dict(
        _LLAMA, num_local_experts=5, num_experts_per_tok=2)),
    "qwen3 with experts": ("Qwen3Moe", dict(
        _LLAMA, head_dim=4, moe_intermediate_size=12, num_experts=5,
        num_experts_per_tok=3, norm_topk_prob=True)),
    "qwen3 with experts, not normalised": ("Qwen3Moe", dict(
        _LLAMA, head_dim=4, moe_intermediate_size=12, num_experts=5,
        num_experts_per_tok=3, norm_topk_prob=False)),
    "qwen2 with experts": ("Qwen2Moe", _QWEN_2_MOE),
    "qwen2 with experts, normalised": ("Qwen2Moe", dict(
        _QWEN_2_MOE, norm_topk_prob=True, qkv_bias=False)),
    "olmoe": ("Olmoe", dict(_LLAMA, num_experts=5, num_experts_per_tok=2)),
    "qwen3-next": ("Qwen3Next", dict(
        _QWEN_3_NEXT, moe_intermediate_size=12, num_experts=5,
        shared_expert_intermediate_size=20, num_experts_per_tok=2)),
    "qwen3.5": ("Qwen3_5", dict(_QWEN_3_NEXT, linear_conv_kernel_dim=3)),
    "granite 4.0 h": ("GraniteMoeHybrid", _GRANITE_4_H),
    "granite 4.0 h, two groups": ("GraniteMoeHybrid", dict(
        _GRANITE_4_H, mamba_n_groups=2, position_embedding_type="rope",
        attention_bias=True, tie_word_embeddings=True)),
    "gpt-neox": ("GPTNeoX", dict(_SMALL, intermediate_size=24, rotary_pct=0.5)),
    "gpt-neox, not parallel": ("GPTNeoX", dict(
        _SMALL, intermediate_size=24, rotary_pct=1.0, attention_bias=False,
        use_parallel_residual=False)),
    "gpt-neox yarn": ("GPTNeoX", dict(
        _SMALL, intermediate_size=24, rope_parameters=dict(
            _YARN, partial_rotary_factor=0.5))),
    "starcoder-2": ("Starcoder2", dict(_LLAMA, sliding_window=3)),
    "gemma": ("Gemma", _GEMMA),
    "gemma biased": ("Gemma", dict(
        _GEMMA, attention_bias=True, tie_word_embeddings=False)),
    "gemma-2": ("Gemma2", _GEMMA_2),
    "gemma-2 uncapped, without windows": ("Gemma2", dict(
        _GEMMA_2, layer_types=["full_attention"] * 3,
        attn_logit_softcapping=None, final_logit_softcapping=None)),
    "gemma-3": ("Gemma3Text", dict(
        _GEMMA_3, rope_scaling={"rope_type": "linear", "factor": 2.5})),
    "gemma-3 yarn": ("Gemma3Text", dict(_GEMMA_3, rope_scaling={
        k: v for k, v in _YARN.items() if k != "rope_theta"})),
    "gemma-3 windows": ("Gemma3Text", dict(
        _GEMMA_3, sliding_window_pattern=6, final_logit_softcapping=6.0)),
    "opt": ("OPT", _OPT),
    "opt-350m": ("OPT", dict(_OPT, do_layer_norm_before=False,
                             word_embed_proj_dim=8)),
    "opt untied, without bias": ("OPT", dict(
        _OPT, enable_bias=False, tie_word_embeddings=False)),
    "gpt-2": ("GPT2", _GPT_2),
    "gpt-2 untied": ("GPT2", dict(
        _GPT_2, n_inner=24, tie_word_embeddings=False)),
}
_ZERO_CENTRED = ("Qwen3Next", "Qwen3_5")
_CONFIGS = {"Qwen3_5": "Qwen3_5TextConfig"}
_CLASSES = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
TOLERANCE = 1e-4
PROMPT, NEW = 8, 64
TOKENS = np.random.default_rng(0).integers(0, 29, (2, 20)).astype(np.int32)


@functools.lru_cache(maxsize=None)
def their_model(variant):
  """A transformers model, its distributions neither flat nor certain."""
  family, fields = VARIANTS[variant]
  config = getattr(transformers, _CONFIGS.get(family, f"{family}Config"))(
      **fields, bos_token_id=None, eos_token_id=None, pad_token_id=None,
      attn_implementation="eager")
  torch.manual_seed(0)
  name = _CLASSES.get(family, f"{family}ForCausalLM")
  model = getattr(transformers, name)(config).eval()
  with torch.no_grad():
    for name, x in model.named_parameters():
      noise = torch.randn_like(x)
      if "embed_positions" in name or "wpe" in name:
        x.copy_(3 * noise)
      elif x.ndim == 2:
        is_table = any(part in name for part in ("embed_tokens", "lm_head",
                                                 "wte", "embed_in"))
        x.copy_(noise * (0.5 if is_table else 3 / x.shape[1]**0.5))
      else:
        # Gemma adds one itself; without more, layers would be small beside its
        # embeddings.
        mean = ((3 if "post_" in name else 0) if family.startswith("Gemma")
                else 0 if family in _ZERO_CENTRED and "linear" not in name
                else 1)
        x.copy_(noise / 4 + (0 if name.endswith("bias") else mean))
  return model


@pytest.fixture(scope="module", params=VARIANTS)
def both(request, tmp_path_factory):
  """Their model and ours, read from the folder that theirs wrote."""
  theirs = their_model(request.param)
  folder = tmp_path_factory.mktemp("hf")
  theirs.save_pretrained(folder)
  # Scanned layers compile in less time.
  scanned = "linear_attention" not in (
      getattr(theirs.config, "layer_types", None) or ())
  return theirs, tiny.Model(*checkpoints.from_hf(folder, scan_layers=scanned))


def their_logits(model, tokens, **kwargs):
  with torch.no_grad():
    out = model(torch.tensor(np.asarray(tokens), dtype=torch.long), **kwargs)
  return out.logits.numpy()


def assert_close(ours, theirs):
  error = np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max()
  assert error < TOLERANCE, error


def test_whole_sequence(both):
  theirs, ours = both
  expected = their_logits(theirs, TOKENS)
  logits, _ = tiny.causal(ours, TOKENS)
  assert_close(logits, expected)


def test_tree_scoring(both):
  """Each node of a tree against a plain forward over the path to it."""
  theirs, ours = both
  lengths = np.array([5, PROMPT], np.int32)
  tree = np.random.default_rng(1).integers(0, 29, (2, 7)).astype(np.int32)
  texts = np.zeros((2, 7, PROMPT + 4), np.int32)
  for row, length in enumerate(lengths):
    for node in range(7):
      text = [*TOKENS[row, :length], *tree[row, tiny.path_to(node)]]
      texts[row, node, :len(text)] = text
  expected = their_logits(theirs, texts.reshape(14, -1)).reshape(2, 7, -1, 29)
  ends = (lengths[:, None] + tiny.DEPTHS)[:, :, None, None]
  expected = np.take_along_axis(expected, ends, axis=2)[:, :, 0]
  cache = tiny.committed(ours, TOKENS, lengths, 24)
  assert_close(tiny.scored(ours, cache, tree)[0], expected)


def test_greedy_continuation(both):
  """64 tokens after a cache: the same texts, and the same logits."""
  theirs, ours = both
  with torch.no_grad():
    out = theirs.generate(
        torch.tensor(TOKENS[:, :PROMPT], dtype=torch.long), do_sample=False,
        max_new_tokens=NEW, attention_mask=torch.ones(2, PROMPT),
        output_logits=True, return_dict_in_generate=True)
  expected = out.sequences.numpy()[:, PROMPT:]
  tokens, logits = _greedy(ours.lm, ours.params, TOKENS[:, :PROMPT])
  np.testing.assert_array_equal(tokens, expected)
  assert_close(logits, torch.stack(out.logits, dim=1).numpy())
  # Texts of one token would show little.
  assert len(np.unique(expected)) > 2


@functools.partial(jax.jit, static_argnums=0)
def _greedy(lm, params, prompts):
  """Greedy tokens `[B, T]` and their logits `[B, T, V]`, after a cache."""
  cache = lm.init_cache(len(prompts), PROMPT + NEW)

  def step(carry, _):
    cache, tokens = carry
    batch, size = tokens.shape
    order = jnp.broadcast_to(jnp.arange(size), (batch, size))
    logits, block = lm.forward(
        params, tokens, cache.length[:, None] + order, cache,
        cache_lib.init_block(cache, size), 0,
        order[:, :, None] >= order[:, None])
    cache = cache_lib.commit(cache, block, order, jnp.full(batch, size))
    best = logits[:, -1].argmax(axis=-1)[:, None]
    return (cache, best), (best[:, 0], logits[:, -1])

  carry, first = step((cache, prompts), None)
  _, others = jax.lax.scan(step, carry, length=NEW - 1)
  return jax.tree.map(
      lambda x, y: jnp.concatenate([x[:, None], y.swapaxes(0, 1)], axis=1),
      first, others)


@pytest.mark.parametrize("variant", [
    "gemma", "gemma-2", "gemma-2 uncapped, without windows", "gemma-3",
    "gemma-3 windows", "gpt-2 untied", "olmo-2", "olmo-3",
    "olmo-3 yarn", "olmo-3 windows", "smollm3", "granite",
    "gpt-neox", "starcoder-2", "mixtral", "qwen2 with experts",
    "qwen2 with experts, normalised", "qwen3 with experts", "olmoe",
    "llama yarn", "smollm3 yarn", "gpt-neox yarn", "gemma-3 yarn",
    "qwen3 yarn of DeepSeek", "qwen3-next", "qwen3.5", "llama longrope",
    "phi-3 window", "phi-3 long", "phi-4 mini", "olmo-3 without windows",
    "granite 4.0 h", "granite 4.0 h, two groups"])
def test_written_back_it_is_the_same_model(tmp_path, variant):
  """The same bits under the same names, and nothing lost of the config."""
  theirs = their_model(variant)
  theirs.save_pretrained(tmp_path / "theirs")
  checkpoints.convert(tmp_path / "theirs", tmp_path / "ours")
  checkpoints.export(tmp_path / "ours", tmp_path / "again")
  before, after = ({
      name: x.read()
      for name, x in tensor_files.tensors(tmp_path / which).items()
  } for which in ("theirs", "again"))
  assert before.keys() == after.keys()
  jax.tree.map(np.testing.assert_array_equal, before, after)
  again = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "again", attn_implementation="eager")
  assert type(again) is type(theirs)
  np.testing.assert_array_equal(their_logits(again, TOKENS),
                                their_logits(theirs, TOKENS))


def test_the_text_of_a_model_with_images(tmp_path):
  config = transformers.Gemma3Config(
      text_config=dict(_GEMMA_3, initializer_range=0.5), mm_tokens_per_image=4,
      vision_config=dict(
          hidden_size=8, intermediate_size=8, num_hidden_layers=1,
          num_attention_heads=1, image_size=28, patch_size=14))
  theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
  theirs.save_pretrained(tmp_path)
  ours = tiny.Model(*checkpoints.from_hf(tmp_path, scan_layers=True))
  assert_close(tiny.causal(ours, TOKENS)[0], their_logits(theirs, TOKENS))


def test_dynamic_scaling_ends_where_it_would_begin(tmp_path):
  """After that length there are no logits that do not depend on the calls."""
  theirs = their_model("llama dynamic")
  theirs.save_pretrained(tmp_path)
  lm, params = checkpoints.from_hf(tmp_path)
  longer = np.resize(TOKENS, (1, 2 * lm.max_length))
  end = lm.max_length
  short = their_logits(theirs, longer[:, :end])
  assert np.abs(their_logits(theirs, longer)[:, :end] - short).max() > 0.01
  method = dj.methods.autoregressive()
  with pytest.raises(ValueError, match=f"{end}"):
    dj.generate(jax.random.key(0), longer[:, :end], [end], method=method,
                target=lm, target_params=params, max_new_tokens=1)


@pytest.mark.parametrize("variant", ["llama longrope", "phi-4 mini"])
def test_longrope_is_for_short_texts_or_for_long_ones(tmp_path, variant):
  """The logits of theirs for texts of either kind, and never a mixture."""
  theirs = their_model(variant)
  theirs.save_pretrained(tmp_path / "theirs")
  lm, params = checkpoints.from_hf(tmp_path / "theirs")
  config = checkpoints.architecture(tmp_path / "theirs")
  assert lm.max_length == config.max_length == 80
  # Two texts, both longer than the original length.
  texts = np.random.default_rng(3).integers(0, 29, (2, 88)).astype(np.int32)
  expected = their_logits(theirs, texts)
  longer = dataclasses.replace(config, max_length=96)
  ours = tiny.Model(transformer.language_model(longer), params)
  assert_close(tiny.causal(ours, texts)[0], expected)
  # After a cache, whatever its length was.
  cache = tiny.committed(ours, texts[:, :70], [70, 60], 96)
  at = np.array([[70], [60]]) + np.arange(18)
  logits, _ = tiny.forward(
      *ours, np.take_along_axis(texts, at, 1), at, cache,
      cache_lib.init_block(cache, 18), 0,
      np.array([np.tri(18, dtype=bool)] * 2))
  assert_close(logits, np.take_along_axis(expected, at[:, :, None], 1))
  short, _ = tiny.causal(tiny.Model(lm, params), texts[:, :80])
  assert_close(short, their_logits(theirs, texts[:, :80]))
  # The two differ by far more than is tolerated.
  assert np.abs(short - expected[:, :80]).max() > 0.1
  # Written back, it is as it was.
  checkpoints.to_hf(tmp_path / "again", config, params)
  again = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "again", attn_implementation="eager")
  np.testing.assert_array_equal(their_logits(again, texts), expected)
  # The long one is that for all texts.
  checkpoints.to_hf(tmp_path / "long", longer, params)
  again = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "long", attn_implementation="eager")
  np.testing.assert_allclose(their_logits(again, texts)[:, :60],
                             their_logits(again, texts[:, :60]), atol=1e-4)
  assert_close(their_logits(again, texts), expected)
  with pytest.raises(ValueError, match="max_length=80"):
    dj.generate(jax.random.key(0), texts[:, :79], [79] * 2,
                method=dj.methods.autoregressive(), target=lm,
                target_params=params, max_new_tokens=2)


def test_files_of_torch(tmp_path):
  model = their_model("qwen2")
  model.save_pretrained(tmp_path)
  expected = checkpoints.from_hf(tmp_path)[1]
  (tmp_path / tensor_files.SAFETENSORS).unlink()
  for dtype in (torch.float32, torch.bfloat16):
    weights = {name: x.to(dtype) for name, x in model.state_dict().items()}
    torch.save(weights, tmp_path / tensor_files.TORCH)
    jax.tree.map(
        np.testing.assert_array_equal, checkpoints.from_hf(tmp_path)[1],
        jax.tree.map(lambda x: x.astype(str(dtype)[6:]).astype(jnp.float32),
                     expected))


def test_the_shipped_draft_in_transformers(tmp_path):
  folder = launch.model_folder("python-draft")
  checkpoints.export(folder, tmp_path / "hf")
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
  tokens = np.random.default_rng(2).integers(0, 2000, (2, 20))
  ours = tiny.Model(*checkpoints.load(folder))
  assert_close(tiny.causal(ours, tokens)[0], their_logits(theirs, tokens))
  their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
  text = "def f(x):\n    return x  # naïve"
  assert their_tokenizer.encode(text) == tokenizers.load(
      folder).encode(text).ids
  assert their_tokenizer.eos_token == tokenizers.EOS
  assert theirs.config.eos_token_id == 0


def test_a_pair_of_folders(tmp_path):
  """Two folders of transformers, padded differently, decode as one does."""
  words = {f"w{i}": i for i in range(29)}
  theirs = their_model("mistral window")
  draft = transformers.LlamaForCausalLM(
      transformers.LlamaConfig(**{**_LLAMA, "vocab_size": 32}))
  for name, model in (("target", theirs), ("draft", draft)):
    model.save_pretrained(tmp_path / name)
    tokenizers.save(tokenizers_lib.Tokenizer(
        tokenizers_lib.models.WordLevel(words)), tmp_path / name)
  pair = helpers.load_pair(tmp_path / "target", tmp_path / "draft")
  assert pair.draft.vocab_size == pair.target.vocab_size == 29
  out = dj.generate(
      jax.random.key(0), TOKENS[:, :PROMPT], [PROMPT] * 2,
      method=dj.methods.rsd_s(width=2, depth=2), target=pair.target,
      target_params=pair.target_params, draft=pair.draft,
      draft_params=pair.draft_params, max_new_tokens=NEW,
      sampling=dj.Sampling(temperature=0.0))
  expected = theirs.generate(
      torch.tensor(TOKENS[:, :PROMPT], dtype=torch.long), do_sample=False,
      max_new_tokens=NEW, attention_mask=torch.ones(2, PROMPT))
  np.testing.assert_array_equal(out.tokens, expected.numpy())
  (tmp_path / "target" / "generation_config.json").write_text(
      '{"eos_token_id": 29}')
  with pytest.raises(launch.UserError, match="eos_token_id=29: 0 to 28"):
    model_pair.open_pair(tmp_path / "target", tmp_path / "draft")


def test_a_pair_of_tokenizers_without_a_common_token_is_refused(tmp_path):
  their_model("qwen2").save_pretrained(tmp_path)
  tokenizers.save(tokenizers_lib.Tokenizer(
      tokenizers_lib.models.WordLevel({"a b": 0})), tmp_path)
  with pytest.raises(launch.UserError, match="different tokenizers: no token"):
    model_pair.open_pair("python-target", tmp_path)
