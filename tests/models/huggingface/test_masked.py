"""LLaDA and Dream: folders, and parity with a reference in numpy.

The reference was written after the models' own code: LLaDA as vendored by
ims-kdks/Learning-to-Parallel-Decoding @ 3ac0ed3, llada/model/modeling_llada.py
(`LLaDALlamaBlock`), Dream as vendored by NVlabs/Fast-dLLM @ 6a3fe32,
dream/model/modeling_dream.py.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

import decoding_jax as dj
from models import checkpoints, transformer
from models.huggingface import config as hf_config
from support import head_reference as parts, published_configs as published

V, DIM, LAYERS, HEADS, KV, HIDDEN, THETA, EPS = 13, 12, 2, 3, 3, 20, 100.0, 1e-5
_SMALL = {
    "llada": dict(published.LLADA, vocab_size=V, embedding_size=V, d_model=DIM,
                  n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV,
                  mlp_hidden_size=HIDDEN, rope_theta=THETA, mask_token_id=11,
                  max_sequence_length=32),
    "Dream": dict(published.DREAM, vocab_size=V, hidden_size=DIM,
                  num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  num_key_value_heads=1, intermediate_size=HIDDEN,
                  rope_theta=THETA, mask_token_id=12, rms_norm_eps=EPS,
                  max_position_embeddings=32, torch_dtype="float32")}
_QWEN = {name: _SMALL["Dream"][name] for name in (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "intermediate_size", "rope_theta", "rms_norm_eps",
    "max_position_embeddings", "torch_dtype")}
_SMALL |= {
    "sdar": dict(published.SDAR, **_QWEN, head_dim=DIM // HEADS,
                 mask_token_id=12),
    "Fast_dLLM_Qwen": dict(
        published.FAST_DLLM, **_QWEN, mask_token_id=12,
        layer_types=["full_attention"] * LAYERS)}
_IN_BLOCKS = ("sdar", "Fast_dLLM_Qwen")
# What layers of both have, and how each file calls it.
_NAMES = {
    "llada": dict(
        layer="model.transformer.blocks.{}.", attention_norm="attn_norm",
        query="q_proj", key="k_proj", value="v_proj", out="attn_out",
        norm="ff_norm", gate="ff_proj", up="up_proj", down="ff_out",
        embedding="model.transformer.wte", last="model.transformer.ln_f",
        head="model.transformer.ff_out"),
    "Dream": dict(
        layer="model.layers.{}.", attention_norm="input_layernorm",
        query="self_attn.q_proj", key="self_attn.k_proj",
        value="self_attn.v_proj", out="self_attn.o_proj",
        norm="post_attention_layernorm", gate="mlp.gate_proj",
        up="mlp.up_proj", down="mlp.down_proj",
        embedding="model.embed_tokens", last="model.norm", head="lm_head")}
_NAMES |= dict.fromkeys(_IN_BLOCKS, _NAMES["Dream"])


def _tensors(family):
  """Returns random tensors by the names of a file."""
  rng, names = np.random.default_rng(0), _NAMES[family]
  kv = DIM if family == "llada" else DIM // HEADS
  shapes = {f"{names[x]}.weight": shape for x, shape in (
      ("embedding", (V, DIM)), ("last", (DIM,)), ("head", (V, DIM)))}
  for i in range(LAYERS):
    for x, shape in (("attention_norm", (DIM,)), ("query", (DIM, DIM)),
                     ("key", (kv, DIM)), ("value", (kv, DIM)),
                     ("out", (DIM, DIM)), ("norm", (DIM,)),
                     ("gate", (HIDDEN, DIM)), ("up", (HIDDEN, DIM)),
                     ("down", (DIM, HIDDEN))):
      name = names["layer"].format(i) + names[x]
      shapes[f"{name}.weight"] = shape
      if family in ("Dream", "Fast_dLLM_Qwen") and (
          x in ("query", "key", "value")):
        shapes[f"{name}.bias"] = shape[:1]
      if family == "sdar" and x in ("query", "key"):
        shapes[f"{name[:-4]}norm.weight"] = (DIM // HEADS,)
  return {name: rng.normal(0.5 * (len(shape) == 1), 0.4, shape).astype(
      np.float32) for name, shape in shapes.items()}


def _reference(family, tensors, tokens, blocks=None):
  """Returns logits `[T, V]` float64 of tokens that all see each other.

  Or, with the block `[T]` of each, those of no later block.
  """
  names = _NAMES[family]
  blocks = np.zeros(len(tokens)) if blocks is None else np.asarray(blocks)

  def norm(x, name):
    return parts.rms(x, tensors[f"{name}.weight"], EPS)

  def linear(x, name):
    return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)

  x = tensors[f"{names['embedding']}.weight"][tokens].astype(np.float64)
  for i in range(LAYERS):
    at = lambda name, i=i: names["layer"].format(i) + names[name]
    y = norm(x, at("attention_norm"))
    q, k, v = (linear(y, at(name)).reshape(len(x), -1, DIM // HEADS)
               for name in ("query", "key", "value"))
    if family == "sdar":
      q, k = norm(q, at("query")[:-4] + "norm"), norm(k, at("key")[:-4] +
                                                      "norm")
    q, k = (parts.rotate(z, np.arange(len(x)), THETA) for z in (q, k))
    k, v = (np.repeat(z, HEADS // z.shape[1], axis=1) for z in (k, v))
    scores = np.einsum("qhc,khc->hqk", q, k) / np.sqrt(DIM // HEADS)
    scores = np.where(blocks[None] > blocks[:, None], -np.inf, scores)
    x = x + linear(np.einsum("hqk,khc->qhc", parts.softmax(scores),
                             v).reshape(len(x), -1), at("out"))
    y = norm(x, at("norm"))
    x = x + linear(parts.silu(linear(y, at("gate"))) * linear(y, at("up")),
                   at("down"))
  return linear(norm(x, names["last"]), names["head"])


@pytest.fixture(name="folder", params=_SMALL)
def _folder(request, tmp_path):
  family = request.param
  (tmp_path / "config.json").write_text(json.dumps(_SMALL[family]))
  safetensors.save_file(_tensors(family), tmp_path / "model.safetensors")
  return family, tmp_path


def test_logits_are_those_of_the_reference(folder):
  family, path = folder
  model, params = checkpoints.load_masked(path)
  assert (model.mask_id, model.shifted) == {
      "llada": (11, False), "Dream": (12, True), "sdar": (12, False),
      "Fast_dLLM_Qwen": (12, True)}[family]
  tokens = np.array([[3, 1, 4, 11, 5, 9, 2, 12]])
  expected = _reference(family, _tensors(family), tokens[0])
  logits = transformer.bidirectional_logits(model.language_model, params,
                                            jnp.asarray(tokens))
  np.testing.assert_allclose(logits[0], expected, rtol=1e-3, atol=1e-4)
  # Negative control: a causal mask gives other logits.
  causal = transformer.causal_logits(model.language_model, params,
                                     jnp.asarray(tokens))
  assert np.abs(causal[0] - expected).max() > 0.01


def test_fills_a_canvas_as_plain_python_does(folder):
  """One token a step; logits may be those of the token after.

  Of SDAR and Fast-dLLM v2 prompts are in blocks too, and drafts with a cache
  give the same text.
  """
  family, path = folder
  model, params = checkpoints.load_masked(path)
  tensors, prompt, text = _tensors(family), [3, 1, 4, 2], [model.mask_id] * 4
  blocks = np.arange(8) // 2 if family in _IN_BLOCKS else None
  while model.mask_id in text:
    logits = _reference(family, tensors, [*prompt, *text], blocks)
    logits = logits[3:-1] if model.shifted else logits[4:]
    logits[:, model.mask_id] = -np.inf
    probs = np.exp(logits - np.logaddexp.reduce(logits, 1, keepdims=True))
    best = np.where(np.array(text) == model.mask_id, probs.max(axis=1), -1)
    if model.block_causal and model.mask_id in text[:2]:
      best[2:] = -1
    text[np.argmax(best)] = int(np.argmax(probs[np.argmax(best)]))
  run = lambda method, **kwargs: dj.canvas.generate(
      jax.random.key(0), np.array([prompt]), np.array([4]), method=method,
      model=model, params=params, length=4,
      block=2 if model.block_causal else 4, **kwargs)
  assert run(dj.canvas.methods.static(1)).tokens[0].tolist() == text
  if model.block_causal:
    assert run(dj.canvas.methods.free_dave(1, 2),
               cache=True).tokens[0].tolist() == text


@pytest.mark.parametrize("fields, expected", [
    (published.SDAR, dict(qk_norm=True, head_dim=128)),
    (published.FAST_DLLM, dict(qkv_bias=True, qk_norm=False)),
    (published.LLADA, dict(hidden_dim=12288, qkv_bias=False)),
    (published.DREAM, dict(num_kv_heads=4, qkv_bias=True))])
def test_what_is_published_is_read(fields, expected):
  config, ignored = hf_config._parse(fields)[:2]
  assert not ignored
  assert {k: getattr(config, k) for k in expected} == expected


@pytest.mark.parametrize("fields, message", [
    (dict(block_type="sequential"), "block_type='sequential' of llada"),
    (dict(alibi=True), "alibi=True of llada"),
    (dict(embedding_size=14), "embedding_size=14 of llada"),
    (dict(mask_token_id=None), "mask_token_id must be given"),
    (dict(auto_map={"AutoModel": "other.Model"}), "auto_map: other.Model"),
])
def test_what_is_not_llada_is_refused(tmp_path, fields, message):
  (tmp_path / "config.json").write_text(json.dumps(
      {**_SMALL["llada"], **fields}))
  with pytest.raises(ValueError, match=message):
    hf_config.read(tmp_path)


def test_a_causal_model_has_no_mask(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(
      {**_SMALL["llada"], "model_type": "llama"}))
  with pytest.raises(ValueError, match="is no masked-diffusion model"):
    checkpoints.load_save.hf_masked.mask_of(tmp_path)
