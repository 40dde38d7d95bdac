"""The layers of a decoder: on a CPU all in one call of native CPU kernels.

Layers with a choice of experts, and scanned ones, have native CPU kernels for
products, norms and attention alone; so has training.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from decoding_jax.kernels.cpu import bindings
from models.transformer import quantization

# What of a layer is read, in the order in which it is.
_PARTS = (("attention_norm",), ("attention", "query"), ("attention", "key"),
          ("attention", "value"), ("attention", "query_norm"),
          ("attention", "key_norm"), ("attention", "out"),
          ("attention_out_norm",), ("feed_forward_norm",),
          ("feed_forward", "gate"), ("feed_forward", "up"),
          ("feed_forward", "down"), ("feed_forward_out_norm",))
# By their numbers in C++.
_ACTIVATIONS = {"swiglu": 0, "geglu": 1, "gelu": 1, "relu": 2, "erf_gelu": 3}


def through(config, narrow, plain, params, x, cache, block, slot, views):
  """Goes through all layers.

  Args:
    config: a `transformer.Config`.
    narrow: of each layer, whether the last view is its own; else the first is.
    plain: computes it by the compiler; hashable, of the arguments that follow.
    params: of the layers; `layer_0`, `layer_1`, ... of those that are not
      scanned.
    x: `[F, n]`, the first B * T columns of which are the fresh tokens.
    cache: the committed prefix.
    block: gets the fresh keys and values.
    slot: where in the block the first fresh token goes.
    views: one or two of `layers.View`.

  Returns:
    `[F, n]` and the block.
  """
  if not _fits(config, params, x, cache):
    return plain(params, x, cache, block, slot, views)
  return jax.lax.platform_dependent(
      params, x, cache, block, jnp.asarray(slot, jnp.int32), views,
      default=plain,
      cpu=functools.partial(_natively, config, tuple(narrow), plain))


def _fits(config, params, x, cache) -> bool:
  """Whether there is native CPU kernels for such layers."""
  if (config.scan_layers or config.num_experts
      or config.parallel and config.reordered_norm):
    return False
  matrices, others = [], [cache.keys[0]]
  for layer in params.values():
    for part in _parts(layer):
      for name, array in part.items():
        (matrices if name == "kernel" else others).append(array)
  return (all(array.dtype == x.dtype for array in others) and bindings.reads(x)
          # Without one, as in training, gradients may be asked for.
          and cache.keys[0].shape[-1] > 0
          and bindings.multiplies(list(map(_values, matrices))))


def _values(matrix):
  return matrix.values if quantization.is_matrix(matrix) else matrix


def _parts(layer):
  """Norms and linear layers, those that there are."""
  for path in _PARTS:
    part = layer
    for name in path:
      part = part.get(name, {})
    if part:
      yield part


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _natively(config, narrow, plain, params, x, cache, block, slot, views):
  del plain
  layers = [params[f"layer_{i}"] for i in range(config.num_layers)]
  arrays = [array for layer in layers for part in _parts(layer)
            for name in ("scale", "kernel", "bias") if name in part
            for array in jax.tree.leaves(part[name])]
  memories = list(zip(cache.keys, cache.values, block.keys, block.values))
  rows, length, nodes = views[0].block.shape
  heads, groups = config.num_kv_heads, config.num_heads // config.num_kv_heads
  sizes = dict(rows=rows, length=length, features=config.dim, heads=heads,
               groups=groups, channels=config.head_dim,
               hidden=config.hidden_dim, slots=cache.keys[0].shape[-1],
               nodes=nodes)
  y, fresh = bindings.layers(
      x, slot, list(map(_seen, views)),
      [len(views) - 1 if is_narrow else 0 for is_narrow in narrow], memories,
      arrays, _values(layers[0]["attention"]["query"]["kernel"]).dtype, sizes,
      _kind(config), _present(layers[0]))
  keys, values = zip(*fresh)
  return y, types.Block(keys, values)


@_natively.defjvp
def _slopes(config, narrow, plain, primals, tangents):
  del config, narrow
  return jax.jvp(plain, primals, tangents)


def _seen(view):
  """Cosines, sines, and masks of cache and block."""
  turns = view.turns or (jnp.zeros((2, 0, *view.block.shape[:2])),) * 2
  return (*turns, view.prefix, view.block)


def _kind(config):
  """What the config says, of types that C++ has."""
  scale = (config.query_scalar or config.head_dim)**-0.5
  number = {"epsilon": config.norm_eps,
            # As queries are scaled: by a number of their type.
            "query_scale": np.asarray(scale, jnp.dtype(config.dtype)),
            "cap": config.attention_softcap,
            "residual_scale": config.residual_scale}
  is_true = {"plus_one": config.norm == "rms_plus_one",
             "joint_norm": config.joint_qk_norm,
             "norm_of_sum": config.post_norm,
             "parallel": config.parallel}
  return ({name: np.float32(x) for name, x in number.items()} | is_true
          | {"activation": np.int64(_ACTIVATIONS[config.feed_forward])})


def _present(layer):
  """Which parts of a layer there are."""
  attention, feed_forward = layer["attention"], layer["feed_forward"]
  return {"scales": quantization.is_matrix(attention["query"]["kernel"]),
          "qkv_bias": "bias" in attention["query"],
          "out_bias": "bias" in attention["out"],
          "feed_forward_bias": "bias" in feed_forward["up"],
          "norm_bias": any("bias" in layer.get(name, {}) for name in (
              "attention_norm", "attention_out_norm")),
          "norms": "attention_norm" in layer,
          "out_norms": "attention_out_norm" in layer,
          "head_norms": "query_norm" in attention,
          "gate": "gate" in feed_forward}
