"""Tests of models.huggingface.deepseek: configs, block scales, parity."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import conformance
from models import checkpoints, transformer
from models.heads import mtp
from models.huggingface import block_scales, heads, tensor_files
from models.huggingface import config as hf_config
from support import (
    decoder_reference, head_reference, published_configs as published,
    published_heads as hf, tiny_models as tiny)

TOLERANCE = 1e-4
PROMPT, NEW = 8, 24
_YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5,
         "original_max_position_embeddings": 16, "rope_theta": 30.0,
         "mscale": 1.0, "mscale_all_dim": 0.4}
_DENSE = dict(
    vocab_size=29, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=96, intermediate_size=24,
    kv_lora_rank=10, q_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4,
    v_head_dim=5)
_MIXED = dict(
    _DENSE, moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=3,
    n_group=4, topk_group=2, first_k_dense_replace=1, n_shared_experts=2)
_SPARSE = dict(index_topk=24, index_n_heads=2, index_head_dim=8)
# Family, fields, and whether its layers are scanned here.
VARIANTS = {
    "deepseek-3": ("DeepseekV3", _MIXED, False),
    "deepseek-3 yarn": ("DeepseekV3", dict(
        _MIXED, rope_parameters=_YARN, q_lora_rank=None), True),
    "deepseek-3 without groups": ("DeepseekV3", dict(
        _MIXED, n_group=1, topk_group=1, first_k_dense_replace=0,
        rope_interleave=False, norm_topk_prob=False), True),
    "deepseek-2": ("DeepseekV2", dict(
        _MIXED, topk_method="group_limited_greedy", routed_scaling_factor=3.0,
        rope_parameters=_YARN), True),
    "deepseek-2 lite": ("DeepseekV2", dict(
        _MIXED, n_group=1, topk_group=1, q_lora_rank=None), False),
    "deepseek-3.2": ("DeepseekV32", dict(_MIXED, **_SPARSE), False),
    "glm-4.7 flash": ("Glm4MoeLite", dict(
        _MIXED, n_group=1, topk_group=1, first_k_dense_replace=None), True),
    "glm-5": ("GlmMoeDsa", dict(_MIXED, **_SPARSE), True),
    "youtu": ("Youtu", _DENSE, True)}
TOKENS = np.random.default_rng(0).integers(0, 29, (2, 20)).astype(np.int32)


@pytest.mark.parametrize("fields, heads, layers", [
    (published.DEEPSEEK_3, 128, 61), (published.KIMI_K2, 64, 61),
    (published.DEEPSEEK_2_LITE, 16, 27)])
def test_bytes_of_a_token_in_published_models(tmp_path, fields, heads, layers):
  """1,152 of a layer in bfloat16; keys and values would be of each head."""
  config = published.read(tmp_path, fields)
  cache = jax.eval_shape(
      lambda: transformer.language_model(config).init_cache(1, 1))
  held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(
      (cache.keys, cache.values)))
  assert held == 2 * (512 + 64) * layers
  assert 2 * heads * (128 + 64 + 128) * layers / held == heads * 320 / 576


def test_the_published_config():
  config = hf_config.parse("", published.DEEPSEEK_3)
  assert (config.dense_layers, config.num_experts, config.experts_per_token,
          config.expert_groups, config.groups_per_token, config.shared_dim,
          config.max_length) == (3, 256, 8, 8, 4, 2048, 163840)
  # 192 channels, and scores times the square of 1 + 0.1 log(40).
  growth = 1 + 0.1 * math.log(40)
  np.testing.assert_allclose(config.query_scalar**-0.5,
                             192**-0.5 * growth**2, rtol=1e-9)
  assert config.rope_gain == 1
  assert hf_config.parse("", hf_config.fields(config)) == config


@pytest.mark.parametrize("fields, message", [
    ({"attention_bias": True}, "attention_bias=True of deepseek_v3 is not"),
    ({"moe_layer_freq": 2}, "moe_layer_freq=2 of deepseek_v3 is not supported"),
    ({"scoring_func": "softmax"}, "scoring_func=.softmax. of deepseek_v3"),
    ({"topk_method": "greedy"}, "topk_method='greedy', norm_topk_prob=True"),
    ({"num_key_value_heads": 8}, "num_key_value_heads=8 of deepseek_v3 is not"),
    ({"n_group": 7}, "expert_groups=7, groups_per_token=4: groups that divide"),
    ({"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types=.*61 are need"),
    ({"auto_map": {"AutoModel": "other.Model"}}, "auto_map: other.Model of"),
    ({"quantization_config": {"quant_method": "fp8"}},
     "weight_block_size=None of fp8 is not supported; two positive"),
    ({"quantization_config": {"quant_method": "awq"}},
     "quantization_config=.* of deepseek_v3 is not supported; None is")])
def test_what_is_not_supported_is_named(fields, message):
  with pytest.raises(ValueError, match=message):
    hf_config.parse("", {**published.DEEPSEEK_3, **fields})


def test_blocks_of_eight_bits_times_their_scales(tmp_path):
  """Blocks at the edges are smaller; scales of other shapes are refused."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(5, 7)).astype(ml_dtypes.float8_e4m3fn)
  scales = rng.uniform(1, 2, (3, 3)).astype(np.float32)
  arrays = {"x.weight": x, "x.weight_scale_inv": scales, "y": scales}
  (tmp_path / hf_config.FILE).write_text(
      '{"quantization_config": {"quant_method": "fp8",'
      ' "weight_block_size": [2, 3]}}')

  def read(**others):
    given = {**arrays, **others}
    tensor_files.write(
        tmp_path / tensor_files.SAFETENSORS,
        {name: y.shape for name, y in given.items()}, "float32", given.get,
        {"x.weight": x.dtype})
    return tensor_files.tensors(tmp_path)

  actual = read()
  assert actual.keys() == {"x.weight", "y"}
  expected = [[float(x[i, j]) * scales[i // 2, j // 3] for j in range(7)]
              for i in range(5)]
  np.testing.assert_allclose(actual["x.weight"].read(), expected, rtol=1e-6)
  wrong = read(**{"x.weight_scale_inv": scales[:2]})["x.weight"]
  assert "scales of shape (2, 3): (3, 3) for blocks of [2, 3]" in wrong.refusal
  (tmp_path / hf_config.FILE).write_text("{}")
  with pytest.raises(ValueError, match="need quantization_config"):
    read()
  assert not block_scales.is_known(None)


@pytest.mark.long
def test_the_next_token_module(tmp_path, monkeypatch):
  """In the target's own folder: latent attention, and experts."""
  config = dataclasses.replace(tiny.DEEPSEEK_3, query_scalar=0)
  monkeypatch.setattr(hf, "TARGET", config)
  target = tiny.random_model(config)
  one = dataclasses.replace(config, num_layers=1, dense_layers=0, dense_dim=0)
  given = tiny.random_model(one, 7).params["layers"]["layer_0"]
  checkpoints.to_hf(tmp_path / "own", config, target.params)
  checkpoints.to_hf(tmp_path / "one", one, tiny.random_model(one, 7).params)
  own, module = ({name: x.read() for name, x in tensor_files.tensors(
      tmp_path / name).items()} for name in ("own", "one"))
  more = hf.drawn({**{f"model.layers.2.{x}.weight": (hf.DIM,) for x in (
      "enorm", "hnorm", "shared_head.norm")}, "model.layers.2.eh_proj.weight":
                   (hf.DIM, 2 * hf.DIM)})
  folder = hf.write(
      tmp_path / "target",
      json.loads((tmp_path / "own" / hf_config.FILE).read_text()),
      own | more | {name.replace("layers.0", "layers.2"): x
                    for name, x in module.items() if "layers.0" in name})
  jax.tree.map(np.testing.assert_array_equal, checkpoints.from_hf(folder)[1],
               target.params)
  loaded = heads.load(folder, config)
  projection, enorm, hnorm, last = hf.as_numpy(more).values()
  params, layer = hf.as_numpy((target.params, given))
  eps = one.norm_eps
  read = head_reference.rms(hf.features(target.params, loaded.kept)[0],
                            params["norm"]["scale"], eps)

  def layers(tokens, hidden):
    x = np.concatenate([
        head_reference.rms(params["embedding"][tokens], enorm, eps),
        head_reference.rms(hidden, hnorm, eps)], axis=-1)
    return head_reference.rms(decoder_reference.layer(
        one, layer, x @ projection.T), last, eps)

  hf.check_recurrent(loaded, target.params, read, layers,
                     lambda x: x @ params["head"].T)
  with pytest.raises(ValueError, match="latent_dim=6: a head with latent"):
    heads.save(tmp_path / "saved", mtp, mtp.Config(one), loaded.params, (1,))


@functools.lru_cache(maxsize=None)
def their_model(variant):
  """A transformers model, its distributions neither flat nor certain."""
  torch = pytest.importorskip("torch", reason="pip install -e '.[parity]'")
  transformers = pytest.importorskip("transformers")
  family, fields, _ = VARIANTS[variant]
  config = getattr(transformers, f"{family}Config")(
      **fields, bos_token_id=None, eos_token_id=None, pad_token_id=None,
      attn_implementation="eager")
  torch.manual_seed(0)
  model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
  corrections = [x for name, x in model.named_buffers() if "correction" in name]
  with torch.no_grad():
    for name, x in model.named_parameters():
      noise = torch.randn_like(x)
      is_table = "embed_tokens" in name or "lm_head" in name
      x.copy_(1 + noise / 4 if x.ndim == 1 else
              noise * (0.5 if is_table else 3 / x.shape[-1]**0.5))
    for x in corrections:
      x.copy_(torch.randn_like(x) / 4)
  return model


def their_logits(model, tokens):
  torch = pytest.importorskip("torch")
  with torch.no_grad():
    return model(torch.tensor(np.asarray(tokens), dtype=torch.long)
                 ).logits.numpy()


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_texts_and_trees(tmp_path, variant):
  """Against theirs: whole texts, trees, levels and commits; and back again."""
  theirs = their_model(variant)
  theirs.save_pretrained(tmp_path / "theirs")
  ours = tiny.Model(*checkpoints.from_hf(tmp_path / "theirs",
                                         scan_layers=VARIANTS[variant][2]))
  expected = their_logits(theirs, TOKENS)
  logits, _ = tiny.causal(ours, TOKENS)
  error = np.abs(logits - expected).max() / np.abs(expected).max()
  assert error < TOLERANCE, error
  conformance.check_model(*ours, lambda _, tokens: jax.pure_callback(
      functools.partial(their_logits, theirs),
      jax.ShapeDtypeStruct((*tokens.shape, 29), jnp.float32), tokens))
  config = checkpoints.architecture(tmp_path / "theirs")
  assert ours.lm.max_length == VARIANTS[variant][1].get("index_topk", {
      True: 128, False: 96}["rope_parameters" in VARIANTS[variant][1]])
  config = dataclasses.replace(config, scan_layers=VARIANTS[variant][2])
  checkpoints.to_hf(tmp_path / "again", config, ours.params)
  before, after = ({
      name: x.read() for name, x in tensor_files.tensors(folder).items()
      if ".indexer." not in name
  } for folder in (tmp_path / "theirs", tmp_path / "again"))
  assert before.keys() == after.keys()
  jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.long
def test_greedy_texts_are_those_of_transformers(tmp_path):
  """By trees of a draft of the same family too, in weights of all bits."""
  torch = pytest.importorskip("torch")
  theirs = their_model("deepseek-3")
  theirs.save_pretrained(tmp_path)
  lm, params = checkpoints.from_hf(tmp_path)
  draft = tiny.noisy(tiny.Model(lm, params), 0.2)
  expected = theirs.generate(
      torch.tensor(TOKENS[:, :PROMPT], dtype=torch.long), do_sample=False,
      max_new_tokens=NEW, attention_mask=torch.ones(2, PROMPT))
  assert len(np.unique(expected.numpy()[:, PROMPT:])) > 2
  for method in (dj.methods.autoregressive(), dj.methods.speculative(3),
                 dj.methods.rsd_s(width=3, depth=3)):
    needs = {} if "autoregressive" in method.name else dict(
        draft=draft.lm, draft_params=draft.params)
    out = dj.generate(
        jax.random.key(0), TOKENS[:, :PROMPT], [PROMPT] * 2, method=method,
        target=lm, target_params=params, max_new_tokens=NEW,
        sampling=dj.Sampling(temperature=0.0), **needs)
    np.testing.assert_array_equal(out.tokens, expected.numpy())
