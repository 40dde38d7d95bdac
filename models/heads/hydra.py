"""Hydra (arXiv 2402.05109): Medusa heads that depend on the draft so far.

Head i reads the target's last hidden state before the root, and the embeddings
of the root and i drafted tokens: each tree node has its own distribution, at a
product of few rows. Hydra++ (section 4) first applies a decoder layer to all
hidden states. The format was read in zankner/Hydra@3f39fbd2 (mlp_head.py,
prefix_mlp_head.py of hydra/model/hydra_heads).
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax.types import Head
from models.heads import medusa
from models.heads.parts import assembly
from models.heads.parts import formats
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization

# Architectures of heads, and whether they have a prefix layer.
_ARCHITECTURES = {"mlp": False, "prefix-mlp": True}
_PREFIX = "prefix_embeding_layer"  # Spelt as in files.


@dataclasses.dataclass(frozen=True)
class Config(medusa.Config):
  """Sizes of the heads."""
  # A `transformer.Config` of the layer that reads the hidden states first
  # (Hydra++), or None. Files hold none of its sizes: there they equal the
  # target's layers.
  prefix: Any = None


class _Heads(nn.Module):
  """All heads, or one of them."""
  config: Config
  target: Any

  @nn.compact
  def __call__(self, x, only=None):
    """Returns logits `[..., V]` of each head, or of number `only` alone. `x
    [..., (1 + H) F]` is a hidden state and the embeddings of H tokens."""
    cfg, dim = self.config, self.target.dim
    linear = functools.partial(layers.Linear, dim, True,
                               jnp.dtype(self.target.dtype),
                               weights=cfg.weights)
    logits = []
    for i in range(cfg.heads) if only is None else (only,):
      y = x[..., :(i + 2) * dim]
      for j in range(cfg.blocks):
        inner = nn.silu(linear(name=f"head_{i}_block_{j}")(y))
        # The first block has fewer outputs than inputs.
        y = inner + (y if j else linear(name=f"head_{i}_residual")(y))
      logits.append(self._output(i, y))
    return logits

  def _output(self, i, y):
    shape, dtype = (self.target.vocab_size, self.target.dim), jnp.dtype(
        self.target.dtype)
    table = self.param(f"head_{i}_out", quantization.initializer(
        layers.INIT, self.config.weights), shape, dtype)
    bias = self.param(f"head_{i}_out_bias", nn.initializers.zeros,
                      shape[:1], dtype)
    return linear_ops.matmul(y, table) + jnp.expand_dims(
        bias.astype(jnp.float32), range(y.ndim - 1))


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns Hydra heads on a target that keeps its last layer's output."""
  if config.prefix:
    prefix_layers.check(config.prefix, target)
  return assembly.head(
      assembly.Spec(config, target),
      (functools.partial(prefix_layers.init_state, config.prefix, target),
       _read, _start, _logits), init, depth=config.heads,
      max_length=config.prefix.max_length if config.prefix else 0)


def _unrolled(config: Config, target, params, target_params, features, tokens,
              depth: int):
  x = prefix_layers.forward(
      config.prefix, params.get("prefix"),
      target_ends.norm(target, target_params, features[0]))
  embeddings = target_ends.embed(target, target_params, tokens)
  logits = []
  for i in range(depth):
    # The root is i tokens before the last one that head i reads.
    inputs = [_later(x, i), *(_later(embeddings, i - j) for j in range(i + 1))]
    logits += _heads(config, target, params, jnp.concatenate(inputs, -1), i)
  return jnp.stack(logits, axis=1)


def _read(spec, params, target_params, state, features, tokens, count):
  del tokens
  x = target_ends.norm(spec.target, target_params, features[0])
  return prefix_layers.read(spec.config.prefix, params.get("prefix"), x, state,
                            count)


def _start(spec, params, target_params, state, root, nodes):
  """Returns `[B, I, H]` int32, the tokens from the root to each inner node."""
  del params, target_params, state
  paths = jnp.zeros((len(root), nodes, spec.config.heads), jnp.int32)
  return paths.at[:, 0, 0].set(root)


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  config, target, _ = spec
  if not nodes.is_root:
    paths = jnp.where(jnp.arange(config.heads)[None, None] == level,
                      nodes.of(tree.tokens, 1)[:, :, None],
                      assembly.above(draft, tree, nodes))
    draft = assembly.put(draft, paths, nodes)
  paths = nodes.of(draft, 1)
  embeddings = target_ends.embed(target, target_params, paths)
  feature = jnp.broadcast_to(state.hidden[:, None],
                             (*paths.shape[:2], target.dim))
  x = jnp.concatenate([feature, embeddings.reshape(*paths.shape[:2], -1)], -1)
  return assembly.by_level(
      level, config.heads, lambda i, x: _heads(config, target, params, x, i)[0],
      x), draft


def _heads(config, target, params, x, only):
  return _Heads(config, target).apply({"params": params["heads"]}, x, only)


def _later(x, places):
  """Returns `[B, T, F]` moved to later places, with zeros before it."""
  return jnp.pad(x, ((0, 0), (places, 0), (0, 0)))[:, :x.shape[1]]


def init(key, config: Config, target):
  """Returns random parameters: `heads`, and `prefix` for Hydra++."""
  shape = jax.ShapeDtypeStruct((1, (1 + config.heads) * target.dim),
                               jnp.dtype(target.dtype))
  params = {"heads": _Heads(config, target).lazy_init(key, shape)["params"]}
  if config.prefix:
    params["prefix"] = prefix_layers.init(jax.random.fold_in(key, 1),
                                          config.prefix)
  return params


def _config(folder):
  path, fields = folder.path, folder.fields
  arch = fields.get("hydra_head_arch", "mlp")
  if arch not in _ARCHITECTURES:
    raise ValueError(f"'{path}': hydra_head_arch={arch!r} is not supported; "
                     f"{' and '.join(map(repr, _ARCHITECTURES))} are.")
  for name, only in (("grounded_heads", True), ("hidden_state_offset", 0)):
    if fields.get(name, only) != only:
      raise ValueError(f"'{path}': {name}={fields[name]!r} is not supported; "
                       f"{only!r} is.")
  prefix = formats.layer_of(folder.target) if _ARCHITECTURES[arch] else None
  return Config(fields["hydra_num_heads"], fields.get("hydra_num_layers", 1),
                prefix=prefix), formats.last(folder.target)


def _names(config, _):
  names = {}
  for i in range(config.heads):
    # There are layers of dropout in heads with a prefix layer.
    last = f"hydra_lm_head.{i}{'.1' if config.prefix else ''}"
    names |= {f"heads/head_{i}_out": f"{last}.weight",
              f"heads/head_{i}_out_bias": f"{last}.bias"}
    for j in range(config.blocks):
      block = f"hydra_mlp.{i}.{2 * j + 1 if config.prefix else j}"
      names |= formats.linear(f"heads/head_{i}_block_{j}", f"{block}.linear")
      if not j:
        names |= formats.linear(f"heads/head_{i}_residual",
                                f"{block}.res_connection")
  return names | {"prefix/norm/scale": f"{_PREFIX}.norm.weight"} | (
      formats.layer_names("prefix/layers/layer_0", f"{_PREFIX}.layers.0"))


def _fields(config, *_):
  return {"hydra_num_heads": config.heads, "hydra_num_layers": config.blocks,
          "hydra_head_arch": "prefix-mlp" if config.prefix else "mlp",
          "grounded_heads": True, "hidden_state_offset": 0}


FORMAT = formats.Format(
    _config, _names, _fields, "hydra_num_heads", files=(
        {"hydra_lm_head.safetensors": ""}, {"hydra_lm_head.pt": ""}),
    known={**dict.fromkeys(("hydra_num_heads", "hydra_num_layers"),
                           formats.COUNT), "hydra_head_arch": formats.WORD},
    unused=(f"{_PREFIX}.embed_tokens.weight",
            f"{_PREFIX}.layers.0.self_attn.rotary_emb.inv_freq"))


def _kind(prefix):
  return training.Kind(
      lambda target, depth: Config(depth, prefix=formats.layer_of(
          target) if prefix else None),
      training.of_pairs(_unrolled), begin=training.from_output_layer)


KINDS = {"hydra": _kind(False), "hydra++": _kind(True)}
