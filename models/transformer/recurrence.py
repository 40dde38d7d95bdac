"""Layers with a state instead of keys and values, through draft trees.

A head has a state `S [C, V]`; a token with key k, change d and decay g <= 0
continues its predecessor's state S':

    S = exp(g) S' + k d^T       output S^T q

In gated delta layers (`gated_delta`) the change depends on S', in Mamba-2
layers (`mamba2`) on the token alone.

No tree node keeps a state (2 MiB a layer of Qwen3-Next or Granite 4.0 H Micro),
only its change (g, k, d), 24 or 17 KiB. With S0 of the committed prefix, and
G(i, j) the sum of g over the nodes after j as far as i, the state of node i is

    exp(G(i, root)) S0 + sum over j, ancestors of i and i, exp(G(i, j)) kj dj^T

which is exact, and a commit adds the changes of the accepted path to S0 (as
STree, arXiv 2505.14969, for Mamba-2). Inputs of the causal convolutions of
query, key and value are kept too.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import types
from decoding_jax.kernels import buffers
from models.transformer import layers
from models.transformer import parameters
from models.transformer import quantization

_LINEAR = parameters.LINEAR
# Products are of float32: errors of a state stay in it.
_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class View(NamedTuple):
  """View of a layer with a state: what fresh tokens see. `mask [B, T,
  N]` has itself and its ancestors in the block; `newest [B, T, K]` are indices
  of the newest K tokens of its text, into the K - 1 of the cache and the N of
  the block."""
  mask: types.Array
  newest: types.Array


def recurrent(config) -> list[bool]:
  """Returns for each layer whether it has a state instead of attention."""
  every = config.full_every or config.num_layers + 1
  return [config.linear_key_heads > 0 and (i + 1) % every > 0
          and i not in config.attention_layers
          for i in range(config.num_layers)]


def view(config, mask) -> View:
  """Returns what such layers see, of the mask `[B, T, N]` of a forward."""
  taps = config.linear_conv
  seen = jnp.pad(mask, [(0, 0), (0, 0), (taps - 1, 0)], constant_values=True)
  later = _suffix_sums(seen.astype(jnp.int32), 2) - seen
  newest = seen[None] & (
      later[None] == jnp.arange(taps)[::-1, None, None, None])
  return View(mask, jnp.moveaxis(jnp.argmax(newest, axis=-1), 0, -1))


def init_states(config, batch: int) -> types.States | None:
  """Returns the states of an empty text; None of a model without such layers.
  Each such layer has the last K - 1 inputs of its convolutions, and the state
  `[B, H, R, C, V]` float32 of R value heads for each of H key heads."""
  count, heads = sum(recurrent(config)), config.linear_key_heads
  if not count:
    return None
  per, dtype = config.linear_value_heads // heads, jnp.dtype(config.dtype)

  def inputs(slots):
    return {name: jnp.zeros((batch, slots, width), dtype)
            for name, width in _widths(config).items()}

  ours = lambda *shape: jnp.zeros((batch, *shape), jnp.float32)
  state = {"inputs": inputs(config.linear_conv - 1), "state": ours(
      heads, per, config.linear_key_dim, config.linear_value_dim)}
  empty = {"inputs": inputs(0), "decay": ours(0, heads, per),
           "key": ours(0, heads, config.linear_key_dim),
           "change": ours(0, heads, per, config.linear_value_dim)}
  return types.States((state,) * count, (empty,) * count, _advance)


def first(states: types.States | None, config) -> types.States | None:
  """Returns the states of the first layers of a model, as a config has them."""
  count = sum(recurrent(config))
  return states and states.replace(
      arrays=states.arrays[:count],
      empty=states.empty[:count]) if count else None


class Fresh(NamedTuple):
  """Attributes: `query`, `key [B, T, H, C]`, `value [B, T, H, R, V]`, `decay`
  (g) and `rate [B, T, H, R]`; float32. Without a rate, a value is a change."""
  query: types.Array
  key: types.Array
  value: types.Array
  decay: types.Array
  rate: types.Array | None = None


class Projected(NamedTuple):
  """Values that a layer computes before the states. Query, key and value
  as in `Fresh`; `small` are `[B, T, H, R]`, and `inputs` the convolutions', of
  N slots."""
  query: types.Array
  key: types.Array
  value: types.Array
  gate: types.Array
  small: list[types.Array]
  inputs: dict[str, types.Array]


def linear(config):
  """Returns a maker of the products of such a layer."""
  return functools.partial(layers.Linear, bias=False, weights=config.weights,
                           dtype=jnp.dtype(config.dtype))


def project(module, x, states, updates, slot, view, *, small,
            bias=False) -> Projected:
  """Computes products and convolutions of a layer, as parts of its module.
  `small` names products of one number a head; `bias` is of the convolutions."""
  cfg = module.config
  heads = (*x.shape[:2], cfg.linear_key_heads)
  widths = {**_widths(cfg), "gate": cfg.linear_value_heads *
            cfg.linear_value_dim}
  *mixed, gate = layers.project(
      [linear(cfg)(width, axes=(_LINEAR, None), name=name)
       for name, width in widths.items()], x)
  # Small, and quantised as little as the router of experts.
  numbers = layers.project(
      [linear(cfg)(cfg.linear_value_heads, weights=quantization.DTYPE,
                   axes=(_LINEAR, None), name=name) for name in small], x)
  inputs, mixed = _convolved(module, mixed, states["inputs"], updates["inputs"],
                             slot, view, bias)
  shapes = (-1,), (-1,), (-1, cfg.linear_value_dim)
  return Projected(*(y.astype(jnp.float32).reshape(*heads, *tail)
                     for y, tail in zip(mixed, shapes)), gate,
                   [y.reshape(*heads, -1) for y in numbers], inputs)


def _convolved(module, mixed, old, block, slot, view, bias):
  """Returns inputs of the block, and what the convolutions make of them."""
  taps, dtype = module.config.linear_conv, jnp.dtype(module.config.dtype)
  kept, outputs = {}, []
  for name, fresh in zip(_widths(module.config), mixed):
    kernel = parameters.declare(
        module, f"{name}_conv", layers.INIT, (fresh.shape[-1], 1, taps), dtype,
        (_LINEAR, None, None))
    kept[name] = _write(block[name], fresh, slot)
    text = jnp.concatenate([old[name], kept[name]], axis=1)
    newest = buffers.take_along(
        text, view.newest.reshape(len(fresh), -1, 1), axis=1)
    y = _einsum("btkf,fk->btf", newest.reshape(
        *view.newest.shape, -1).astype(jnp.float32),
                kernel[:, 0].astype(jnp.float32))
    if bias:
      y += parameters.declare(
          module, f"{name}_conv_bias", nn.initializers.zeros, y.shape[-1:],
          dtype, (_LINEAR,)).astype(jnp.float32)[None, None]
    y = y.astype(fresh.dtype)
    outputs.append(nn.silu(y.astype(jnp.float32)).astype(fresh.dtype))
  return kept, outputs


def time_steps(module, x):
  """Returns g, the log of decays, and time steps, float32 `[B, T, H, R]`."""
  bias, rate = (
      parameters.declare(
          module, name, nn.initializers.zeros, (x.shape[2] * x.shape[3],),
          jnp.dtype(module.config.dtype), (_LINEAR,)).astype(
              jnp.float32).reshape(x.shape[2:])[None, None]
      for name in ("dt_bias", "A_log"))
  steps = nn.softplus(x.astype(jnp.float32) + bias)
  return -jnp.exp(rate) * steps, steps


def scan(fresh: Fresh, state, updates, slot, mask):
  """Returns outputs `[B, T, H, R, V]`, and the updates of the N slots. The
  state `[B, H, R, C, V]` is the committed prefix's; `mask [B, T, N]` has
  each of the T fresh tokens and its ancestors."""
  keys = _write(updates["key"], fresh.key, slot)
  decays = _write(updates["decay"], fresh.decay, slot)
  # A system's changes are not known yet, and are left out of the first sums.
  changes = _write(updates["change"], fresh.value if fresh.rate is None
                   else jnp.zeros_like(fresh.value), slot)
  mask = mask[:, None, None]  # [B, 1, 1, T, N]
  sums = _suffix_sums(jnp.where(
      mask, decays.transpose(0, 2, 3, 1)[:, :, :, None], 0), -1)
  since = jnp.where(mask, jnp.exp(_after(sums, -1)), 0)
  whole = jnp.exp(sums[..., :1])

  def read(x):
    """Returns weights of the block, and what the state has, for each token."""
    scores = _einsum("bthc,bnhc->bhtn", x, keys)[:, :, None] * since
    return scores, whole * _einsum("bthc,bhrcv->bhrtv", x, state)

  weigh = functools.partial(_einsum, "bhrtn,bnhrv->bhrtv")
  if fresh.rate is not None:
    changes = _write(changes, _solved(
        fresh, *read(fresh.key), weigh, changes, slot), slot)
  scores, known = read(fresh.query)
  y = known + weigh(scores, changes)
  return y.transpose(0, 3, 1, 2, 4), {
      "decay": decays, "key": keys, "change": changes}


def _solved(fresh, scores, known, weigh, changes, slot):
  """Returns changes `[B, T, H, R, V]` that depend on ancestors' changes. They
  are b (v - S'^T k) of a decayed S', as in arXiv 2412.06464, section 3.3, with
  the mask of the tree instead of the causal one."""
  rate = fresh.rate.transpose(0, 2, 3, 1)[..., None]
  solved = rate * (fresh.value.transpose(0, 2, 3, 1, 4) - known -
                   weigh(scores, changes))
  count = fresh.key.shape[1]
  if count > 1:
    # What lies above the diagonal is not read, nor is the diagonal of ones.
    solved = jax.lax.linalg.triangular_solve(
        rate * jax.lax.dynamic_slice_in_dim(scores, slot, count, 4), solved,
        left_side=True, lower=True, unit_diagonal=True)
  return solved.transpose(0, 3, 1, 2, 4)


def _advance(states, updates, count):
  """See `types.States`: adds the changes of the first tokens of a path."""
  return tuple(_advance_layer(count, *layer) for layer in zip(states, updates))


def _advance_layer(count, state, update):
  counts = jnp.arange(update["decay"].shape[1])[None] < count[:, None]
  counts = counts[..., None, None]
  sums = _suffix_sums(jnp.where(counts, update["decay"], 0), 1)
  since = jnp.where(counts, jnp.exp(_after(sums, 1)), 0)
  added = _einsum("bkhc,bkhr,bkhrv->bhrcv", update["key"], since,
                  update["change"])

  def newest(old, fresh):
    row = lambda text, start: jax.lax.dynamic_slice_in_dim(
        text, start, old.shape[1])
    return jax.vmap(row)(jnp.concatenate([old, fresh], axis=1), count)

  kept = jnp.exp(sums[:, 0])[..., None, None] * state["state"]
  return {"inputs": jax.tree.map(newest, state["inputs"], update["inputs"]),
          "state": kept + added}


def _widths(config):
  """Returns channels of the convolutions, by name."""
  keys = config.linear_key_heads * config.linear_key_dim
  return {"query": keys, "key": keys,
          "value": config.linear_value_heads * config.linear_value_dim}


def _suffix_sums(x, axis):
  """Returns sums of each entry and all after it."""
  return jnp.flip(jnp.cumsum(jnp.flip(x, axis), axis=axis), axis)


def _after(sums, axis):
  """Returns the sums of all after each entry, from those that include it."""
  rest = jax.lax.slice_in_dim(sums, 1, None, axis=axis)
  widths = [(0, 0)] * sums.ndim
  widths[axis] = (0, 1)
  return jnp.pad(rest, widths)


def _write(block, fresh, slot):
  return jax.lax.dynamic_update_slice_in_dim(block, fresh.astype(block.dtype),
                                             slot, 1)
