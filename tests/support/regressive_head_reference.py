"""Heads that read drafted tokens in numpy, one row, without caches.

Written from zankner/Hydra@3f39fbd2 (hydra/model/hydra_heads), XiaoBin1992/
clover@9d37214a (clover/model/clover2.py), kafkayu/Chimera@1650c932
(Chimera_model.forward) and Luc4Gui/FSPAD@1c2df5e2 (eagle/model/cnets_fspad.py).
`w` is a dict from the names of tensors to arrays; `sizes` are those of
`head_reference`.
"""

import numpy as np

from support import head_reference as reference


def linear(w, name, x):
  y = x @ w[f"{name}.weight"].T
  return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer(w, prefix, x, places, mask, sizes, before=None):
  """A layer of Llama."""
  normed = reference.rms(x, w[f"{prefix}.input_layernorm.weight"], sizes["eps"])
  x = x + reference.attention(w, prefix, normed, places, mask, sizes, before)
  return x + reference.feed_forward(w, prefix, reference.rms(
      x, w[f"{prefix}.post_attention_layernorm.weight"], sizes["eps"]))


def layers(w, prefixes, norm, x, sizes):
  """Layers over a text, and a norm."""
  for prefix in prefixes:
    x = layer(w, prefix, x, np.arange(len(x)), reference.causal(len(x)), sizes)
  return reference.rms(x, w[norm], sizes["eps"])


def hydra(w, i, hidden, embeddings, step, last):
  """Logits of head i; `step` is the distance of the names of its blocks."""
  y = np.concatenate([hidden, *embeddings[:i + 1]])
  for j, name in enumerate(f"hydra_mlp.{i}.{step - 1 + step * j}"
                           for j in range(2)):
    inner = reference.silu(linear(w, f"{name}.linear", y))
    y = inner + (y if j else linear(w, f"{name}.res_connection", y))
  return linear(w, f"hydra_lm_head.{i}{last}", y)


def connection(w, name, x, embedding, sizes):
  """The attention decoder of Clover, whose weights are cosines."""
  normed = reference.rms(x, w[f"{name}.input_layernorm.weight"], sizes["eps"])
  parts = [(linear(w, f"{name}.{part}", y)).reshape(
      *x.shape[:-1], sizes["heads"], -1) for part, y in (
          ("q", normed), ("k", embedding), ("v", embedding))]
  q, k, v = parts
  cosine = (q * k).sum(-1, keepdims=True) / (
      np.linalg.norm(q, axis=-1, keepdims=True) *
      np.linalg.norm(k, axis=-1, keepdims=True))
  return x + (v * cosine).reshape(x.shape)


def clover2(w, features, embeddings, count, sizes):
  """What the last of `count` drafted tokens makes, before the output layer."""
  pairs = len(features)
  x = connection(w, "clover_head_mlp_rnn", features, embeddings[:pairs], sizes)
  hidden = layers(w, ("layers.0", "layers.1"), "clover_norm.weight", x,
                  sizes)[-1]
  out = linear(w, "clover_head_mlp", hidden)
  for e in embeddings[pairs:pairs + count]:
    hidden = connection(w, "clover_head_mlp_rnn2", hidden, e, sizes)
    out = linear(w, "clover_head_mlp2", np.concatenate([hidden, e]))
  return reference.rms(out, w["clover_head_norm.weight"], sizes["eps"])


def chimera(w, hidden, embeddings, count, sizes):
  """Logits after the last of `count` drafted tokens."""
  name, pairs = "fast_layer1.0", len(hidden)
  # The first token of all is none of these.
  first = embeddings[:1]
  text = np.concatenate([first, first, embeddings[:pairs + count]])
  grams = np.concatenate([text[:-2], text[1:-1], text[2:]], -1)
  grams = linear(w, "trimlp.1", grams + reference.silu(
      linear(w, "trimlp.0.linear", grams)))

  def keys(x, places):
    normed = reference.rms(x, w[f"{name}.input_layernorm.weight"], sizes["eps"])
    return reference.keys_values(w, name, normed, places, sizes)

  made = np.zeros((0, hidden.shape[1]))
  for at in range(pairs, pairs + count + 1):
    seen = (keys(hidden, np.arange(pairs)),
            keys(grams[:at - 1], 1 + np.arange(at - 1)),
            keys(made, pairs + np.arange(len(made))))
    before = tuple(np.concatenate(parts) for parts in zip(*seen))
    out = layer(w, name, grams[at - 1:at], np.array([at]),
                np.ones((1, 1), bool), sizes, before)
    made = np.concatenate([made, out])
  return np.concatenate([hidden[-1], made[-1]]) @ w[
      f"chimera_head.{count}.0.weight"].T


def fspad(w, embeddings, features, sizes):
  """Outputs for logits and for features, of pairs."""
  x = linear(w, "fc.fc", np.concatenate([embeddings, features], -1))
  normed = reference.rms(x, w["fc.post_attention_layernorm.weight"],
                         sizes["eps"])
  gate = reference.silu(linear(w, "fc.mlp.gate_proj", embeddings))
  x = x + linear(w, "fc.mlp.down_proj", gate * linear(w, "fc.mlp.up_proj",
                                                      normed))
  x = x + reference.attention(w, "layers.0", x, np.arange(len(x)),
                              reference.causal(len(x)), sizes)
  y = reference.feed_forward(w, "layers.0", reference.rms(
      x, w["layers.0.post_attention_layernorm.weight"], sizes["eps"]))
  return np.split(y + np.concatenate([x, x], -1), 2, axis=-1)
