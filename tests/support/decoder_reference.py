"""The decoder in numpy, float64, written from the papers of its parts."""

import dataclasses
import functools
import statistics

import jax
import numpy as np

from support import rope_reference


def logits(config, params, tokens):
  """Logits `[T, V]` of one causal forward in float64, positions first."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  x = p["embedding"][tokens] * config.embedding_scale
  if config.embedding_dim:
    x = _linear(p["project_in"], x)
  if config.positions == "learned":
    x = x + p["positions"][:len(tokens)]
  for i in range(config.num_layers):
    layer = p["layers"][f"layer_{i}"]
    mixer = functools.partial(_attention, i)
    if config.linear_key_heads and not is_full(config, i):
      name, function = {"delta": ("delta", _delta),
                        "mamba2": ("mamba", _mamba)}[config.linear_layer]
      mixer = lambda config, _, x, own=layer[name], run=function: run(
          config, own, x)
    for name, function in (("attention", mixer),
                           ("feed_forward", _feed_forward)):
      if name == "attention":
        before = x
      norm = functools.partial(_norm, config, layer.get(f"{name}_norm"))
      if config.post_norm:
        x = norm(x + function(config, layer[name], x))
        continue
      y = before if config.parallel else x
      y = function(config, layer.get(name),
                   y if config.reordered_norm else norm(y))
      if config.sandwich_norm or config.reordered_norm:
        y = _norm(config, layer[f"{name}_out_norm"], y)
      x = x + y * config.residual_scale
  if not config.post_norm:
    x = _norm(config, p["norm"], x)
  if config.embedding_dim:
    x = _linear(p["project_out"], x)
  result = x @ p["embedding" if config.tie_embeddings else "head"].T
  result /= config.logit_divisor
  return _bend(result, config.logit_softcap)


def layer(config, params, x):
  """The outputs `[T, F]` of one layer with norms before its two parts."""
  y = x + _attention(0, config, params["attention"],
                     _norm(config, params["attention_norm"], x))
  return y + _feed_forward(config, params["feed_forward"], _norm(
      config, params["feed_forward_norm"], y))


def _bend(x, cap):
  return np.tanh(x / cap) * cap if cap else x


def _linear(layer, x):
  return x @ layer["kernel"].T + (layer["bias"] if "bias" in layer else 0)


def _norm(config, layer, x):
  if config.norm != "layer":
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps)
    return y * (layer["scale"] + (config.norm == "rms_plus_one"))
  y = (x - x.mean(-1, keepdims=True)) / np.sqrt(
      x.var(-1, keepdims=True) + config.norm_eps)
  return y * layer["scale"] + layer["bias"]


def _feed_forward(config, layer, x):
  if config.num_experts:
    dense = dataclasses.replace(config, num_experts=0, shared_dim=0,
                                dense_layers=0)
    if "router" not in layer:
      return _feed_forward(dense, layer, x)
    y = np.stack([_mixture(dense, config, layer, token) for token in x])
    if not config.shared_dim:
      return y
    gate = _sigmoid(_linear(layer["shared_gate"],
                            x)) if config.shared_gate else 1
    return y + gate * _feed_forward(dense, layer["shared"], x)
  up = _linear(layer["up"], x)
  if config.feed_forward == "relu":
    return _linear(layer["down"], np.maximum(up, 0))
  if config.feed_forward == "gelu":
    return _linear(layer["down"], _gelu(up))
  if config.feed_forward == "erf_gelu":
    normal = np.vectorize(statistics.NormalDist().cdf)
    return _linear(layer["down"], up * normal(up))
  gate = _linear(layer["gate"], x)
  gate = (_gelu(gate) if config.feed_forward == "geglu"
          else gate / (1 + np.exp(-gate)))
  return _linear(layer["down"], gate * up)


def _mixture(dense, config, layer, x):
  """One token's experts, the most probable ones, by what they are worth."""
  worth = _linear(layer["router"], x)
  worth = (_sigmoid(worth) if config.router == "sigmoid"
           else np.exp(worth) / np.exp(worth).sum())
  choice = worth + layer.get("correction", 0)
  if config.expert_groups:
    groups = choice.reshape(config.expert_groups, -1)
    count = 2 if config.router == "sigmoid" else 1
    best = np.argsort([-sum(sorted(group)[-count:]) for group in groups])
    groups[best[config.groups_per_token:]] = -np.inf
    choice = groups.reshape(-1)
  chosen = np.argsort(-choice)[:config.experts_per_token]
  worth /= worth[chosen].sum() if config.normalize_experts else 1
  return config.expert_scale * sum(worth[i] * _feed_forward(
      dense, {name: {"kernel": layer[name]["kernel"][i]}
              for name in ("gate", "up", "down")}, x) for i in chosen)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _gelu(x):
  """Half of x, times one plus a tanh (Hendrycks, Gimpel 2016)."""
  return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _latent_attention(config, layer, x):
  """With keys and values of each head, as the paper begins (section 2.1.2)."""
  size, norm = len(x), dataclasses.replace(config, norm_eps=1e-6)
  q = x
  if config.query_rank:
    q = _norm(norm, layer["query_norm"], _linear(layer["query_down"], x))
  q = _linear(layer["query"], q).reshape(size, config.num_heads, -1)
  latent, rotated = np.split(_linear(layer["latent"], x), [config.latent_dim],
                             axis=-1)
  latent = _norm(norm, layer["latent_norm"], latent)
  v = _linear(layer["value"], latent).reshape(size, config.num_heads, -1)
  k = np.einsum("hrc,tr->thc", layer["key"]["kernel"].reshape(
      config.num_heads, config.latent_dim, -1), latent)

  def turned(y):
    if config.rope_interleaved:
      y = np.concatenate([y[..., ::2], y[..., 1::2]], axis=-1)
    return rope_reference.rotate(config, y)

  q = np.concatenate([q[..., :config.plain_dim],
                      turned(q[..., config.plain_dim:])], axis=-1)
  k = np.concatenate([k, np.repeat(turned(rotated[:, None]), config.num_heads,
                                   axis=1)], axis=-1)
  scores = np.einsum("thc,shc->hts", q, k) / np.sqrt(
      config.query_scalar or q.shape[-1])
  scores = _bend(scores, config.attention_softcap)
  scores[:, ~np.tri(size, dtype=bool)] = -np.inf
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  y = np.einsum("hts,shc->thc", weights, v)
  return _linear(layer["out"], y.reshape(size, -1))


def _attention(index, config, layer, x):
  if config.latent_dim:
    return _latent_attention(config, layer, x)
  size, dim = len(x), config.head_dim
  q, k, v = (_linear(layer[name], x) for name in ("query", "key", "value"))
  if config.joint_qk_norm:
    q = _norm(config, layer["query_norm"], q)
    k = _norm(config, layer["key_norm"], k)
  q, k, v = (y.reshape(size, -1, dim) for y in (q, k, v))
  if config.qk_norm:
    q = _norm(config, layer["query_norm"], q)
    k = _norm(config, layer["key_norm"], k)
  windowed = config.window and not is_full(config, index)
  if config.positions == "rope" and (config.rope_full
                                     or not is_full(config, index)):
    if windowed and config.rope_local_theta:
      config = dataclasses.replace(config, rope_theta=config.rope_local_theta,
                                   rope_scaling="none")
    q, k = (rope_reference.rotate(config, x) for x in (q, k))
  seen = np.tri(size, dtype=bool)
  if windowed:
    seen &= ~np.tri(size, k=-config.window, dtype=bool)
  heads = []
  for head in range(config.num_heads):
    group = head // (config.num_heads // config.num_kv_heads)
    scores = q[:, head] @ k[:, group].T / np.sqrt(config.query_scalar or dim)
    scores = _bend(scores, config.attention_softcap)
    scores[~seen] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ v[:, group])
  y = np.concatenate(heads, axis=-1)
  if config.attention_gate:
    y = y / (1 + np.exp(-_linear(layer["gate"], x)))
  return _linear(layer["out"], y)


def is_full(config, index):
  """Whether a layer is one of every n-th, or has attention for itself."""
  return index in config.attention_layers or (
      config.full_every and index % config.full_every == config.full_every - 1)


def _silu(x):
  return x / (1 + np.exp(-x))


def _convolved(config, layer, x):
  """Queries and keys `[T, value heads, C]`, and values `[T, heads, V]`."""
  size, heads, mixed = len(x), config.linear_value_heads, []
  for name in ("query", "key", "value"):
    y = np.pad(_linear(layer[name], x), [(config.linear_conv - 1, 0), (0, 0)])
    mixed.append(_silu(layer.get(f"{name}_conv_bias", 0) + sum(
        y[tap:tap + size] * layer[f"{name}_conv"][:, 0, tap]
        for tap in range(config.linear_conv))))
  group = heads // config.linear_key_heads
  q, k = (np.repeat(y.reshape(size, -1, config.linear_key_dim), group, 1)
          for y in mixed[:2])
  return q, k, mixed[2].reshape(size, heads, -1)


def _mamba(config, layer, x):
  """Token after token, as in arXiv 2405.21060, equation 1."""
  size, heads = len(x), config.linear_value_heads
  c, b, values = _convolved(config, layer, x)
  steps = np.log1p(np.exp(_linear(layer["decay"], x) + layer["dt_bias"]))
  state, out = np.zeros((heads, *b.shape[2:], values.shape[2])), []
  for t in range(size):
    state = state * np.exp(-np.exp(layer["A_log"]) * steps[t])[:, None, None]
    state = state + np.einsum("hc,hv,h->hcv", b[t], values[t], steps[t])
    out.append(np.einsum("hcv,hc->hv", state, c[t]) + layer["D"][:, None] *
               values[t])
  y = np.reshape(out, (size, -1)) * _silu(_linear(layer["gate"], x))
  y = y.reshape(size, config.linear_key_heads, -1)
  y = y / np.sqrt((y**2).mean(-1, keepdims=True) + config.norm_eps)
  return _linear(layer["out"], y.reshape(size, -1) * layer["norm_scale"])


def _delta(config, layer, x):
  """Token after token, as in arXiv 2412.06464, equation 10."""
  size, heads = len(x), config.linear_value_heads
  q, k, v = _convolved(config, layer, x)
  q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
  rate = 1 / (1 + np.exp(-_linear(layer["rate"], x)))
  decay = np.exp(-np.exp(layer["A_log"]) * np.log1p(np.exp(
      _linear(layer["decay"], x) + layer["dt_bias"])))
  state = np.zeros((heads, config.linear_key_dim, config.linear_value_dim))
  out = np.zeros_like(v)
  for t in range(size):
    state = state * decay[t][:, None, None]
    wrong = v[t] - np.einsum("hcv,hc->hv", state, k[t])
    state = state + np.einsum("hc,hv,h->hcv", k[t], wrong, rate[t])
    out[t] = np.einsum("hcv,hc->hv", state, q[t] / config.linear_key_dim**0.5)
  out /= np.sqrt((out**2).mean(-1, keepdims=True) + config.norm_eps)
  out = (out * layer["norm"]["scale"]).reshape(size, -1)
  return _linear(layer["out"], out * _silu(_linear(layer["gate"], x)))
