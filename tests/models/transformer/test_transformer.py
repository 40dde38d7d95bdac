"""The decoder against numpy in float64, and its forwards against each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.testing import conformance
from models import transformer
from models.transformer import layers
from support import decoder_reference, tiny_families, tiny_models as tiny

CONFIGS = {"llama": tiny.LLAMA, "gemma": tiny.GEMMA, "opt": tiny.OPT}
# Untied, tied, biased, one head a group: what the families leave out.
VARIANTS = {
    **CONFIGS, **{x: tiny_families.CONFIGS[x] for x in (
        "llama with biases", "mistral", "qwen2", "olmo2", "smollm3", "granite",
        "gpt_neox", "gpt2", "mixtral", "olmoe")},
    "opt-350m": tiny_families.CONFIGS["opt"],
    "tied llama with bias": dataclasses.replace(
        tiny.LLAMA, tie_embeddings=True, bias=True),
    "untied opt without bias": dataclasses.replace(
        tiny.OPT, tie_embeddings=False, bias=False),
    "one kv head, other eps and theta": dataclasses.replace(
        tiny.LLAMA, num_kv_heads=1, norm_eps=0.1, rope_theta=50.0),
    "qwen3": dataclasses.replace(tiny.LLAMA, qk_norm=True, window=3),
    "untied projections": dataclasses.replace(
        tiny.LLAMA, embedding_dim=8, post_norm=True),
    "linear rope": dataclasses.replace(
        tiny.LLAMA, rope_scaling="linear", rope_factor=4.0),
    "llama-3": dataclasses.replace(
        tiny.LLAMA, head_dim=8, rope_scaling="llama3", rope_factor=8.0,
        rope_original_length=16, rope_theta=100.0),
    "yarn": dataclasses.replace(
        tiny.LLAMA, head_dim=10, rope_scaling="yarn", rope_factor=8.0,
        rope_low_turns=0.3, rope_high_turns=3.0, rope_original_length=16,
        rope_theta=30.0, rope_gain=1.4, rope_truncate=False),
    "yarn, not in all layers": dataclasses.replace(
        tiny.LLAMA, full_every=2, rope_full=False, rope_scaling="yarn",
        rope_factor=8.0, rope_original_length=16, rope_theta=3.0,
        rope_gain=1.4),
    "longrope, short": dataclasses.replace(
        tiny.LLAMA, head_dim=6, rope_part=0.7, rope_scaling="longrope",
        rope_original_length=64, rope_gain=0.8, rope_short_factors=(1.5, 2.5),
        rope_long_factors=(3.0, 8.0)),
    "longrope, long": dataclasses.replace(
        tiny.LLAMA, rope_scaling="longrope", rope_original_length=63,
        rope_gain=0.8, rope_short_factors=(1.5, 2.5),
        rope_long_factors=(3.0, 8.0)),
    "gemma without a window": dataclasses.replace(
        tiny.GEMMA, window=0, sandwich_norm=False, attention_softcap=0.0),
    "gemma with windows alone": dataclasses.replace(
        tiny.GEMMA, full_every=0, logit_softcap=0.0),
    "no rotation with windows": dataclasses.replace(
        tiny.LLAMA, window=3, full_every=2, rope_full=False),
    "olmo-3": dataclasses.replace(
        tiny.LLAMA, reordered_norm=True, joint_qk_norm=True, window=4,
        full_every=2, rope_local_theta=20.0, rope_scaling="linear",
        rope_factor=2.0),
    "qwen2 with experts": dataclasses.replace(
        tiny.MIXTRAL, normalize_experts=False, qkv_bias=True, shared_dim=20),
    "qwen3.5": tiny.DELTA,
    "qwen3-next": dataclasses.replace(
        tiny.DELTA, num_experts=5, experts_per_token=2, shared_dim=20,
        linear_conv=4, linear_value_heads=2),
    "mamba-2": tiny.MAMBA,
    "mamba-2 alone, one group": dataclasses.replace(
        tiny.MAMBA, attention_layers=(), linear_key_heads=1),
    "delta layers alone": dataclasses.replace(tiny.DELTA, full_every=0),
    "deepseek-2": tiny.DEEPSEEK_2,
    "deepseek-3": tiny.DEEPSEEK_3,
    "latent attention without experts": dataclasses.replace(
        tiny.LLAMA, num_kv_heads=1, latent_dim=6, query_rank=7, plain_dim=2,
        value_dim=9, attention_softcap=3.0),
}
# What changes how a cache, a block and a mask are used.
CACHED = {**CONFIGS, **{x: VARIANTS[x] for x in (
    "qwen3", "opt-350m", "gpt_neox", "smollm3", "mixtral", "deepseek-2",
    "deepseek-3")}}
# Layers with a state, which are not scanned.
ALL = {**CACHED, **{x: VARIANTS[x] for x in (
    "qwen3.5", "qwen3-next", "mamba-2")}}
PLAIN = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
FAMILIES = pytest.mark.parametrize("config", CACHED.values(), ids=CACHED)
B, T = 3, 7
TOKENS = np.random.default_rng(0).integers(0, 13, (B, T)).astype(np.int32)


@pytest.mark.cases(15)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_numpy(config):
  model = tiny.random_model(config)
  logits, _ = tiny.causal(model, TOKENS)
  assert logits.shape == (B, T, config.vocab_size)
  assert logits.dtype == jnp.float32
  for row, tokens in zip(logits, TOKENS):
    expected = decoder_reference.logits(config, model.params, tokens)
    # States sum up more rounding, by XLA's products 1.4e-4.
    atol = 3e-4 if config.linear_key_heads else 1e-4
    np.testing.assert_allclose(row, expected, atol=atol)


@PLAIN
def test_distributions_of_the_test_models_are_neither_flat_nor_certain(config):
  """Without this the tests on these models would show little."""
  logits, _ = tiny.causal(tiny.random_model(config), TOKENS)
  best = np.asarray(jax.nn.softmax(logits)).max(axis=-1)
  assert 0.2 < np.median(best) < 0.9
  assert len(set(np.asarray(logits).argmax(-1).ravel())) > 4


# Prefix lengths of the rows, and a tree of 6 nodes under the newest token.
PREFIX = np.array([1, 4, 6], np.int32)
TREE_TOKENS = np.random.default_rng(1).integers(0, 13, (B, 7)).astype(np.int32)


@pytest.mark.cases(5)
@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_trees_levels_and_commits_are_plain_forwards(config):
  """Controls of this check are in `test_conformance`."""
  model = tiny.random_model(config)
  conformance.check_model(*model, functools.partial(
      transformer.causal_logits, model.lm), tolerance=1e-4)


@FAMILIES
def test_what_is_masked_does_not_matter(config):
  """Neither other block slots nor the cache after its length."""
  model = tiny.random_model(config)
  cache = tiny.committed(model, TOKENS, PREFIX, 12)
  block = cache_lib.init_block(cache, 3)
  mask = np.zeros((B, 1, 3), bool)
  mask[:, :, 1] = True
  run = lambda cache, block: tiny.forward(
      *model, TREE_TOKENS[:, :1], PREFIX[:, None], cache, block, 1, mask)
  logits, written = run(cache, block)

  after = np.arange(12) >= PREFIX[:, None]
  spoil = lambda x, where: jnp.where(where, -30.0, x)
  spoiled = types.Cache(
      tuple(spoil(x, after[:, None, None]) for x in cache.keys),
      tuple(spoil(x, after[:, None, :, None]) for x in cache.values),
      cache.length)
  junk = jax.tree.map(lambda x: x + 50.0, block)
  again, junk_after = run(spoiled, junk)
  np.testing.assert_array_equal(logits, again)
  # Only the slot of the fresh token has been written.
  for old, new, fresh in zip(junk.keys, junk_after.keys, written.keys):
    np.testing.assert_array_equal(new[..., [0, 2]], old[..., [0, 2]])
    np.testing.assert_array_equal(new[..., 1], fresh[..., 1])


@pytest.mark.cases(4)
@FAMILIES
def test_scanned_layers_equal_unrolled_ones(config):
  model = tiny.random_model(config)
  scanned = tiny.Model(
      transformer.language_model(dataclasses.replace(config, scan_layers=True)),
      transformer.stack_layers(model.params))
  jax.tree.map(np.testing.assert_array_equal,
               transformer.unstack_layers(scanned.params), model.params)
  (logits, block), (scanned_logits, scanned_block) = (
      tiny.scored(each, tiny.committed(each, TOKENS, PREFIX, 12), TREE_TOKENS)
      for each in (model, scanned))
  np.testing.assert_allclose(scanned_logits, logits, atol=1e-4)
  stack = slice(config.dense_layers, None)
  assert len(scanned_block.keys) == 1 + config.dense_layers
  for found, expected in ((scanned_block.keys, block.keys),
                          (scanned_block.values, block.values)):
    np.testing.assert_allclose(found[-1], jnp.stack(expected[stack]), atol=1e-5)


@pytest.mark.cases(5)
@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_bfloat16_is_close_to_float32(config):
  model = tiny.random_model(config)
  half = tiny.Model(
      transformer.language_model(dataclasses.replace(config, dtype="bfloat16")),
      jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.params))
  expected, _ = tiny.causal(model, TOKENS)
  logits, block = tiny.causal(half, TOKENS)
  assert logits.dtype == jnp.float32
  assert block.keys[0].dtype == block.values[0].dtype == jnp.bfloat16
  # 8 bits of mantissa through two layers; some tokens choose other experts, and
  # states sum up more rounding.
  gap, states = np.abs(logits - expected), config.linear_key_heads
  typical = np.median(gap) if config.num_experts or states else gap.mean()
  assert 0 < typical < (0.05 if states else 0.02) * np.std(expected)


def test_grouped_heads_equal_repeated_ones():
  model = tiny.random_model(tiny.LLAMA)
  config = dataclasses.replace(tiny.LLAMA, num_kv_heads=tiny.LLAMA.num_heads)

  def repeat(path, x):
    if not {"key", "value"} & {entry.key for entry in path}:
      return x
    heads = x.reshape(tiny.LLAMA.num_kv_heads, tiny.LLAMA.head_dim, -1)
    return jnp.repeat(heads, 2, axis=0).reshape(-1, x.shape[-1])

  params = jax.tree_util.tree_map_with_path(repeat, model.params)
  repeated = tiny.Model(transformer.language_model(config), params)
  np.testing.assert_allclose(tiny.causal(repeated, TOKENS)[0],
                             tiny.causal(model, TOKENS)[0], atol=1e-5)


def shifted(model, shift):
  cache = model.lm.init_cache(B, 0)
  order = np.broadcast_to(np.arange(T), (B, T))
  return tiny.forward(*model, TOKENS, order + shift, cache,
                      cache_lib.init_block(cache, T), 0,
                      np.broadcast_to(np.tri(T, dtype=bool), (B, T, T)))[0]


def test_rotary_positions_are_relative_and_learned_ones_absolute():
  model = tiny.random_model(tiny.LLAMA)
  np.testing.assert_allclose(shifted(model, 5), shifted(model, 0), atol=1e-4)
  model = tiny.random_model(tiny.OPT)
  assert np.abs(shifted(model, 5) - shifted(model, 0)).max() > 0.1


@FAMILIES
def test_init_makes_all_parameters(config):
  params = jax.eval_shape(lambda key: transformer.init(key, config),
                          jax.random.key(0))
  expected = tiny.random_model(config).params
  shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
  assert shapes(params) == shapes(expected)


def test_initial_parameters_are_finite_and_counted():
  for config in (tiny.GEMMA, tiny.OPT, tiny.DEEPSEEK_3):
    params = tiny.init(jax.random.key(0), config)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
  # Embedding and head 13 x 16 each, the last norm 16; a layer: query and out
  # 16 x 16, key and value 8 x 16, three matrices 16 x 24, two norms 16.
  layer = 2 * 256 + 2 * 128 + 3 * 384 + 2 * 16
  model = tiny.random_model(tiny.LLAMA)
  assert transformer.num_params(model.params) == 2 * 208 + 16 + 2 * layer


def test_equal_configs_are_the_same_model():
  again = dataclasses.replace(tiny.LLAMA)
  assert transformer.language_model(again) is transformer.language_model(
      tiny.LLAMA)
  lm = transformer.language_model(tiny.LLAMA)
  assert (lm.vocab_size, lm.max_length) == (13, 64)
  assert hash(lm) == hash(transformer.language_model(again))


@pytest.mark.parametrize("scan_layers, shape, copies", [
    (False, (), 2), (True, (2,), 1)])
def test_an_empty_cache(scan_layers, shape, copies):
  config = dataclasses.replace(tiny.LLAMA, scan_layers=scan_layers)
  cache = transformer.language_model(config).init_cache(5, 9)
  assert [x.shape for x in cache.keys] == [(*shape, 5, 2, 4, 9)] * copies
  assert [x.shape for x in cache.values] == [(*shape, 5, 2, 9, 4)] * copies
  np.testing.assert_array_equal(cache.length, np.zeros(5))


@pytest.mark.parametrize("config, fields, message", [
    *((tiny.LLAMA, {field: value}, f"{field}='{value}' is not one of")
      for field, value in (
          ("norm", "batch"), ("positions", "alibi"), ("feed_forward", "elu"),
          ("rope_scaling", "su"), ("dtype", "float8"))),
    (tiny.LLAMA, {"num_kv_heads": 3}, "num_kv_heads=3 .* num_heads=4"),
    (tiny.GEMMA, {"post_norm": True}, "post_norm=True and sandwich_norm=True"),
    (tiny.GEMMA, {"joint_qk_norm": True}, "qk_norm=True and joint_qk_norm=Tr"),
    (tiny.NEOX, {"post_norm": True}, "post_norm=True and parallel=True"),
    (tiny.MIXTRAL, {"experts_per_token": 6}, "experts_per_token=6, .* 1 to"),
    (tiny.MIXTRAL, {"feed_forward": "gelu"}, "feed_forward='gelu': 1 to num"),
    (tiny.LLAMA, {"shared_dim": 8}, "shared_dim=8 needs num_experts"),
    (tiny.LLAMA, {"rope_part": 0.25}, "rope_part=0.25: of head_dim=4 channels"),
    (tiny.LLAMA, {"rope_part": 1.5}, "rope_part=1.5: of head_dim=4 channels")])
def test_fields_that_are_refused(config, fields, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(config, **fields)


def test_a_scale_that_is_added_to_one_is_rounded_once():
  """In bfloat16 one and a scale below 2**-9 are one, but not its product."""
  config = dataclasses.replace(tiny.GEMMA, dtype="bfloat16")
  x = np.random.default_rng(0).normal(size=(5, 64)).astype("bfloat16")
  scale = np.full(64, 2**-9.5, "bfloat16")
  y = layers.RMSNorm(config).apply({"params": {"scale": scale}}, x)
  x, scale = x.astype(np.float32), scale.astype(np.float32)
  unit = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.norm_eps)
  np.testing.assert_array_equal(y, (unit * (1 + scale.T)).astype("bfloat16"))
  assert np.any(np.asarray(y) != unit.astype("bfloat16"))
