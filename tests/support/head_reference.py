"""Published heads in numpy, one row, each forward over the whole text anew.

Written from sgl-project/SpecForge@89241ea0 (specforge/modeling/draft/
llama3_eagle.py), SafeAILab/EAGLE (eagle/model/cnets1.py), FasterDecoding/Medusa
(medusa/model/medusa_model.py), sgl-project/sglang@d737979c (glm4_moe_nextn.py),
vllm-project/vllm@ffdc9857 (qwen3_next_mtp.py) and @98debc24 (mimo_mtp.py),
z-lab/dflash@10129599 and @07ebd93d (dflash/model.py), sgl-project/SpecForge
@40f8587a (specforge/modeling/draft/domino.py) and deepseek-ai/DeepSpec@5905deb7
(deepspec/modeling/{dspark,eagle3}). `w` is a dict from the names of tensors to
arrays; `sizes` has heads, kv_heads, head_dim, theta, eps.
"""

import numpy as np


def rms(x, scale, eps):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def silu(x):
  return x / (1 + np.exp(-x))


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def rotate(x, positions, theta):
  """Rotates `[T, H, C]`, the two halves of a head being a plane's ends."""
  half = x.shape[-1] // 2
  angles = positions[:, None] / theta**(np.arange(half) / half)
  cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))
  return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def project(w, prefix, name, x, sizes, heads):
  ours = f"{prefix}.self_attn.{name}_proj"
  y = (x @ w[f"{ours}.weight"].T + w.get(f"{ours}.bias", 0)).reshape(
      len(x), heads, sizes["head_dim"])
  scale = w.get(f"{prefix}.self_attn.{name}_norm.weight")
  return y if scale is None else rms(y, scale, sizes["eps"])


def keys_values(w, prefix, x, positions, sizes):
  k = project(w, prefix, "k", x, sizes, sizes["kv_heads"])
  return (rotate(k, positions, sizes["theta"]),
          project(w, prefix, "v", x, sizes, sizes["kv_heads"]))


def attention(w, prefix, x, positions, mask, sizes, before=None):
  """Attends to keys and values of `before`, and to its own by the mask."""
  q = rotate(project(w, prefix, "q", x, sizes, sizes["heads"]), positions,
             sizes["theta"])
  k, v = keys_values(w, prefix, x, positions, sizes)
  if before is not None:
    k, v = (np.concatenate(pair) for pair in zip(before, (k, v)))
    mask = np.concatenate([np.ones((len(x), len(before[0])), bool), mask], 1)
    back = positions[:, None] - np.concatenate(
        [np.arange(len(before[0])), positions])[None]
    mask &= back < sizes.get("window", np.inf)
  group = sizes["heads"] // sizes["kv_heads"]
  k, v = (np.repeat(y, group, axis=1) for y in (k, v))
  scores = np.einsum("thc,shc->hts", q, k) / np.sqrt(sizes["head_dim"])
  y = np.einsum("hts,shc->thc", softmax(np.where(mask, scores, -1e30)), v)
  return y.reshape(len(x), -1) @ w[f"{prefix}.self_attn.o_proj.weight"].T


def feed_forward(w, prefix, x):
  gate, up, down = (w[f"{prefix}.mlp.{name}_proj.weight"].T
                    for name in ("gate", "up", "down"))
  return (silu(x @ gate) * (x @ up)) @ down


def causal(count):
  return np.tril(np.ones((count, count), bool))


def eagle3(w, prefix, embeddings, features, sizes, normed_residual=False):
  """Outputs of the layer for pairs of an embedding and a feature."""
  eps = sizes["eps"]
  normed = rms(features, w[f"{prefix}.hidden_norm.weight"], eps)
  e = rms(embeddings, w[f"{prefix}.input_layernorm.weight"], eps)
  x = (normed if normed_residual else features) + attention(
      w, prefix, np.concatenate([e, normed], -1), np.arange(len(e)),
      causal(len(e)), sizes)
  return x + feed_forward(w, prefix, rms(
      x, w[f"{prefix}.post_attention_layernorm.weight"], eps))


def eagle1(w, embeddings, features, sizes):
  x = np.concatenate([embeddings, features], -1) @ w["fc.weight"].T + w[
      "fc.bias"]
  x = x + attention(w, "layers.0", x, np.arange(len(x)), causal(len(x)), sizes)
  return x + feed_forward(w, "layers.0", rms(
      x, w["layers.0.post_attention_layernorm.weight"], sizes["eps"]))


def block(w, layers, embeddings, features, sizes, is_causal=False):
  """The normed outputs of a block after so many tokens with features."""
  eps, count = sizes["eps"], len(features)
  context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
  x, places = embeddings, count + np.arange(len(embeddings))
  mask = causal(len(x)) if is_causal else np.ones((len(x), len(x)), bool)
  for i in range(layers):
    prefix = f"layers.{i}"
    before = keys_values(w, prefix, context, np.arange(count), sizes)
    x = x + convolved(
        w, f"{prefix}.attention_conv",
        rms(x, w[f"{prefix}.input_layernorm.weight"], eps),
        lambda y, prefix=prefix, before=before: attention(
            w, prefix, y, places, mask, sizes, before))
    x = x + convolved(
        w, f"{prefix}.mlp_conv",
        rms(x, w[f"{prefix}.post_attention_layernorm.weight"], eps),
        lambda y, prefix=prefix: feed_forward(w, prefix, y))
  return rms(x, w["norm.weight"], eps)


def convolved(w, prefix, x, sublayer):
  """A sublayer between convolutions, if it has them (DFlash 2)."""
  if f"{prefix}.base_kernel" not in w:
    return sublayer(x)
  base = w[f"{prefix}.base_kernel"]
  own = (x @ w[f"{prefix}.kernel_projection.weight"].T).reshape(
      len(x), 2, base.shape[1], -1)

  def convolve(y, side):
    out = np.zeros_like(y)
    for t, group, offset in np.ndindex(len(y), own.shape[3], base.shape[1]):
      at = np.arange(y.shape[1]).reshape(own.shape[3], -1)[group]
      if t >= offset:
        out[t, at] += (base[side, offset, at] + own[t, side, offset, group]) * (
            y[t - offset, at])
    return out

  return convolve(sublayer(convolve(x, 0)), 1)


def gru(w, x, h):
  """The next state of a `torch.nn.GRU` without biases."""
  (r, z, n), (r_, z_, n_) = (np.split(w[f"prefix_gru.weight_{y}_l0"] @ v, 3)
                             for y, v in (("ih", x), ("hh", h)))
  sigmoid = lambda v: 1 / (1 + np.exp(-v))
  z = sigmoid(z + z_)
  return (1 - z) * np.tanh(n + sigmoid(r + r_) * n_) + z * h


def domino(w, output, embeddings):
  """What is added to a slot's logits after the root and drafted tokens."""
  state = np.zeros(w["prefix_gru.weight_hh_l0"].shape[1])
  for x in embeddings:
    state = gru(w, x, state)
  hidden = silu(w["embed_proj.0.weight"] @ np.concatenate([output, state]))
  return w["embed_proj.2.weight"] @ hidden


def selected(w, output, logits, before, count):
  """A slot's logits in DFlash 2: of its most probable tokens, and no others."""
  before_, after = (w[f"candidate_selector.{name}_codebook"]
                    for name in ("predecessor", "successor"))
  gate = w["candidate_selector.hidden_projection.weight"] @ output
  result, top = np.full_like(logits, -np.inf), np.argsort(-logits)[:count]
  result[top] = logits[top] + after[top] @ (before_[before] * gate)
  return result


def mtp(w, names, embeddings, features, sizes, state_first=False):
  """The normed outputs of a next-token module.

  `names` are those of the norms of embedding and state, the projection, the
  last norm, and the prefix of the layer.
  """
  eps = sizes["eps"]
  of_embedding, of_state, projection, last, prefix = names
  pair = [rms(embeddings, w[f"{of_embedding}.weight"], eps),
          rms(features, w[f"{of_state}.weight"], eps)]
  x = np.concatenate(pair[::-1] if state_first else pair, -1) @ w[
      f"{projection}.weight"].T
  x = x + attention(
      w, prefix, rms(x, w[f"{prefix}.input_layernorm.weight"], eps),
      np.arange(len(x)), causal(len(x)), sizes)
  x = x + feed_forward(w, prefix, rms(
      x, w[f"{prefix}.post_attention_layernorm.weight"], eps))
  return rms(x, w[f"{last}.weight"], eps)
