"""Tests of fused_layers: layers in one call, against XLA's."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import types
import decoding_jax as dj
from decoding_jax.kernels.cpu import bindings
from models import transformer
from models.transformer import decoder
from models.transformer import fused_layers
from support import tiny_models as tiny

ROWS, LENGTH, SLOTS, NODES, FIRST = 2, 5, 9, 8, 2
LLAMA = tiny.LLAMA
CONFIGS = {
    "llama": LLAMA,
    "gemma": tiny.GEMMA,
    "opt": tiny.OPT,
    "opt_350m": dataclasses.replace(tiny.OPT, post_norm=True, embedding_dim=8),
    "gpt_2": tiny.GPT_2,
    "neox": tiny.NEOX,
    "qwen_2": dataclasses.replace(LLAMA, qkv_bias=True, hidden_dim=37),
    "qwen_3": dataclasses.replace(LLAMA, qk_norm=True, head_dim=10),
    "olmo_2": dataclasses.replace(LLAMA, reordered_norm=True,
                                  joint_qk_norm=True),
    "granite": dataclasses.replace(LLAMA, residual_scale=0.3, query_scalar=7,
                                   logit_divisor=2.0),
    "smollm_3": dataclasses.replace(LLAMA, full_every=2, rope_full=False),
    "mistral": dataclasses.replace(LLAMA, window=3, num_kv_heads=1),
    "starcoder_2": dataclasses.replace(
        LLAMA, norm="layer", feed_forward="gelu", bias=True, window=30),
}
# Types of activations and of matrices.
FORMS = (("float32", "dtype"), ("float32", "bfloat16"), ("float32", "int8"),
         ("bfloat16", "dtype"), ("bfloat16", "int8"))
CASES = [("llama", *form) for form in FORMS] + [
    (name, *form) for name in CONFIGS if name != "llama"
    for form in (FORMS[0], FORMS[-1])]

pytestmark = pytest.mark.skipif(
    not bindings.is_there(), reason="no C++ compiler, or no CPU")


def _numbers(like, seed):
  """Of the shape and type of an array; scales and biases are of all sizes."""
  numbers = np.random.default_rng(seed).standard_normal(like.shape)
  if like.dtype == jnp.int8:
    return numbers.clip(-2, 2).round().astype(np.int8)
  if like.shape[-1] > 1:
    return jnp.asarray(numbers / like.shape[-1]**0.5, like.dtype)
  return jnp.asarray(numbers, like.dtype)


@functools.lru_cache(maxsize=None)
def _params(config):
  """Parameters of the layers."""
  leaves, form = jax.tree.flatten(transformer.abstract_params(config)["layers"])
  return jax.tree.unflatten(form, [_numbers(leaf, i)
                                   for i, leaf in enumerate(leaves)])


def _arguments(config, rows=ROWS):
  """Features, a cache and a block with numbers in all slots, a slot and views.

  Those of a chain of tokens, the first of which goes to that slot.
  """
  heads, size = config.num_kv_heads, config.head_dim
  shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, config.dtype)
  fill = lambda slots: tuple(
      tuple(_numbers(like, i) for i in range(config.num_layers))
      for like in (shape(rows, heads, size, slots),
                   shape(rows, heads, slots, size)))
  cache = types.Cache(*fill(SLOTS), jnp.arange(4, 4 + rows, dtype=jnp.int32))
  order = np.arange(NODES)[None] - FIRST
  mask = (order >= 0) & (order <= np.arange(LENGTH)[:, None])
  views = decoder._views(
      config, cache, cache.length[:, None] + jnp.arange(LENGTH)[None],
      jnp.broadcast_to(mask, (rows, *mask.shape)))
  # Features of the first tokens are the same, however many rows there are.
  x = _numbers(shape(9 * LENGTH, config.dim), 0)[:rows * LENGTH].T
  return x, cache, types.Block(*fill(NODES)), jnp.int32(FIRST), views


@functools.partial(jax.jit, static_argnums=0)
def _layers(config, params, *arguments):
  return fused_layers.through(config, decoder._narrow(config),
                              decoder._compiled(config), params, *arguments)


@functools.partial(jax.jit, static_argnums=0)
def _by_the_compiler(config, params, *arguments):
  return decoder._compiled(config)(params, *arguments)


def _is_called(config, *arguments):
  program = jax.make_jaxpr(_layers, static_argnums=0)(
      config, _params(config), *arguments or _arguments(config))
  return "decoding_jax_layers" in str(program)


@pytest.mark.parametrize("name, dtype, weights", CASES)
def test_layers(name, dtype, weights):
  config = dataclasses.replace(CONFIGS[name], dtype=dtype, weights=weights)
  assert _is_called(config)
  got, expected = (function(config, _params(config), *_arguments(config))
                   for function in (_layers, _by_the_compiler))
  assert jax.tree.structure(got) == jax.tree.structure(expected)
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
    assert x.dtype == y.dtype
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    if dtype == "float32":
      np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.std(y))
    else:
      assert np.median(np.abs(x - y)) < 0.03 * np.std(y)


@pytest.mark.parametrize("field, other", [
    ("feed_forward", "geglu"), ("residual_scale", 0.5), ("norm_eps", 0.5),
    ("rope_theta", 2.0), ("attention_softcap", 1.0), ("query_scalar", 1.0),
    ("window", 2)])
def test_what_a_config_says_matters(field, other):
  """Control: with another value it is far from the compiler's numbers."""
  config = dataclasses.replace(LLAMA, **{field: other})
  expected, _ = _by_the_compiler(LLAMA, _params(LLAMA), *_arguments(LLAMA))
  # Of the same parameters, so that nothing else differs.
  got, _ = _layers(config, _params(LLAMA), *_arguments(config))
  assert np.max(np.abs(got - expected)) > 1e-2 * np.std(expected)


def test_other_slots_of_the_block_are_left_alone():
  _, _, block, *_ = arguments = _arguments(LLAMA)
  _, fresh = _layers(LLAMA, _params(LLAMA), *arguments)
  written = np.arange(FIRST, FIRST + LENGTH)
  others = np.delete(np.arange(NODES), written)
  for before, after in ((block.keys[0], fresh.keys[0]),
                        (block.values[0].mT, fresh.values[0].mT)):
    np.testing.assert_array_equal(after[..., others], before[..., others])
    assert np.all(after[..., written] != before[..., written])


def test_a_row_has_the_same_bits_in_any_company():
  together = _arguments(LLAMA, rows=9)
  x, cache, block, slot, views = together
  first = lambda array: array[:1]
  of_row = lambda view: view._replace(
      turns=jax.tree.map(lambda turns: turns[:, :, :1], view.turns),
      prefix=first(view.prefix), block=first(view.block))
  y, fresh = _layers(LLAMA, _params(LLAMA), *together)
  alone, own = _layers(
      LLAMA, _params(LLAMA), x[:, :LENGTH], jax.tree.map(first, cache),
      jax.tree.map(first, block), slot, tuple(map(of_row, views)))
  np.testing.assert_array_equal(alone, y[:, :LENGTH])
  jax.tree.map(np.testing.assert_array_equal, own, jax.tree.map(first, fresh))


def test_columns_behind_the_tokens_are_zeros():
  x, *rest = _arguments(LLAMA)
  got, _ = _layers(LLAMA, _params(LLAMA), jnp.pad(x, ((0, 0), (0, 6))), *rest)
  expected, _ = _layers(LLAMA, _params(LLAMA), x, *rest)
  np.testing.assert_array_equal(got, jnp.pad(expected, ((0, 0), (0, 6))))


def test_slopes():
  def slopes(layers):
    x, *rest = _arguments(LLAMA)
    return jax.grad(lambda params, x: (layers(LLAMA, params, x, *rest)[0]**2)
                    .sum(), (0, 1))(_params(LLAMA), x)

  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3,
                                 atol=1e-3),
               slopes(_layers), slopes(_by_the_compiler))


def test_where_it_is_not_called():
  assert _is_called(LLAMA)
  assert not _is_called(tiny.MIXTRAL)
  assert not _is_called(dataclasses.replace(LLAMA, dtype="float16"))
  # In training there is no cache.
  x, _, *rest = _arguments(LLAMA)
  nothing = transformer.language_model(LLAMA).init_cache(ROWS, 0)
  assert not _is_called(LLAMA, x, nothing, *rest)


def test_texts_are_those_of_the_compiler(monkeypatch):
  """Greedy ones, by a tree; nothing but rounding differs."""
  model = tiny.random_model(LLAMA)

  def texts():
    jax.clear_caches()
    return dj.generate(
        jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
        method=dj.methods.rsd_s(2, 3), target=model.lm,
        target_params=model.params, draft=model.lm, draft_params=model.params,
        max_new_tokens=tiny.NEW, sampling=dj.Sampling(temperature=0)).tokens

  got = texts()
  monkeypatch.setattr(fused_layers, "_fits", lambda *_: False)
  np.testing.assert_array_equal(got, texts())
  jax.clear_caches()
