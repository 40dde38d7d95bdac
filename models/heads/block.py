"""Block drafters: one forward drafts several tokens (DFlash, DSpark, JetSpec).

A few layers read the root and a mask for each further token, attending to each
other and to their own projections of the target's features. No position depends
on another drafted token: the distribution is a product. DSpark adds a low-rank
bias by the token before, one small product a level; JetSpec's positions are
causal.

Formats were read in z-lab/dflash (model.py) and deepseek-ai/DeepSpec
(deepspec/modeling/dspark); docs/heads.md names the commits.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block, Head
from models.heads.parts import assembly
from models.heads.parts import formats
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import decoder
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of a block drafter."""
  # A `transformer.Config` with the sizes of its layers; its `dim` is the
  # target's, its vocabulary is not used
  layers: Any
  block_size: int = 8  # Tokens of a block, the root included
  mask_token: int = 0  # Token whose embedding stands for what is to be drafted
  num_features: int = 1  # Layers of the target that it reads
  markov_rank: int = 0  # Rank of the bias by the token before; 0 for none
  # Whether the position of a token predicts the next one, so that a block
  # drafts `block_size` tokens; else its own, and it drafts one less
  from_root: bool = False
  causal: bool = False  # Whether positions attend to those before them alone
  # Tokens that it can draft, `params["tokens"]`, with their rows of the
  # target's output layer, `params["output"]`; 0: all
  draft_vocab: int = 0
  # Whether the root biases the first token too; not where layers have learned
  # without a bias, since they have read the root
  markov_root: bool = True

  def __post_init__(self):
    if self.layers.scan_layers:
      raise ValueError("block drafters need scan_layers=False.")
    if self.block_size < 2:
      raise ValueError(f"block_size={self.block_size}: at least 2 are needed.")

  @property
  def depth(self) -> int:
    """Tokens that a block drafts."""
    return self.block_size - (not self.from_root)


class _Network(nn.Module):
  """Projection of features, layers and last norm."""
  config: Config

  def setup(self):
    cfg = self.config.layers
    norm = functools.partial(layers.NORMS[cfg.norm], cfg)
    self.fc = layers.Linear(cfg.dim, False, jnp.dtype(cfg.dtype), cfg.weights)
    self.hidden_norm, self.norm = norm(), norm()
    self.layers = decoder.Unrolled(cfg)

  def __call__(self, x, cache, block, seen):
    """Returns what the layers make of a block, `[B, T, F]`, normed."""
    if self.is_initializing():
      self.project((jnp.zeros_like(x),) * self.config.num_features)
    x, _, _ = self.layers(x, cache, block, 0, seen)
    return self.norm(x)

  def project(self, features):
    x = jnp.concatenate(features, axis=-1).astype(self.config.layers.dtype)
    return self.hidden_norm(self.fc(x))


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns a block drafter; the target keeps as many outputs as it reads."""
  if config.layers.dim != target.dim:
    raise ValueError(f"layers.dim={config.layers.dim}: that of the target, "
                     f"{target.dim}, is needed.")
  return assembly.head(
      assembly.Spec(config, target), (_init, _read, _start, _logits), init,
      num_features=config.num_features, depth=config.depth,
      max_length=config.layers.max_length)


def _bias(config, params, before, level):
  """Returns `[..., N]` of the tokens before, `[...]`, at their levels."""
  bias = linear_ops.matmul(
      linear_ops.lookup(params["markov_in"], before), params["markov_out"])
  return bias if config.markov_root else jnp.where(level > 0, bias, 0)


def _init(spec, batch, slots):
  return prefix_layers.empty_cache(spec.config.layers, batch, slots)


def _read(spec, params, target_params, state, features, tokens, count):
  """Keeps keys and values of features; tokens do not matter."""
  del target_params
  x = _Network(spec.config).apply({"params": params["network"]}, features,
                                  method="project")
  slots = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  block = _projected(spec.config.layers, params, x, state, slots)
  return cache_lib.commit(state, block, slots, count)


def _start(spec, params, target_params, state, root, nodes):
  del nodes
  config, batch, order = spec.config, len(root), np.arange(
      spec.config.block_size)
  tokens = jnp.full((batch, len(order)), config.mask_token, jnp.int32)
  x = target_ends.embed(spec.target, target_params,
                        tokens.at[:, 0].set(root))
  sees = (order[:, None] >= order[None]) | (not config.causal)
  seen = views.of(config.layers, state,
                  state.length[:, None] + jnp.asarray(order, jnp.int32)[None],
                  jnp.broadcast_to(sees, (batch, *sees.shape)))
  x = _Network(config).apply({"params": params["network"]}, x, state,
                             cache_lib.init_block(state, len(order)), seen)
  return target_ends.logits(
      spec.target, target_params, x if config.from_root else x[:, 1:],
      params.get("output"))


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  del target_params, state
  bias = _bias(spec.config, params, nodes.of(tree.tokens, 1), level) if (
      spec.config.markov_rank) else None
  return assembly.at_position(spec, params, draft, level, nodes, bias), draft


def _projected(config, params, x, cache, slots):
  """Returns the block of keys and values of the layers, of `[B, T, F]`."""
  batch, width = slots.shape
  seen = prefix_layers.alone(config, cache, cache.length[:, None] + slots)
  empty = cache_lib.init_block(cache, width)
  nothing = prefix_layers.empty_cache(config, batch)
  pairs = [
      layers.Attention(config, parent=None).apply(
          {"params": params["network"]["layers"][f"layer_{i}"]["attention"]},
          x, (nothing.keys[i], nothing.values[i]),
          (empty.keys[i], empty.values[i]), 0, seen[-1])[1]
      for i in range(config.num_layers)]
  return Block(*map(tuple, zip(*pairs)))


def init(key, config: Config, target):
  """Returns random parameters: `network`, and tables by token. These are
  `markov_in [V, r]` and `markov_out [N, r]` for a bias by the token before,
  and, if the N tokens that it can draft are not all, `tokens [N]` int32, the
  first ones, and their rows `output [N, F]` of the target's."""
  cfg = config.layers
  x = jax.ShapeDtypeStruct((1, 1, cfg.dim), jnp.dtype(cfg.dtype))
  params = {"network": _Network(config).lazy_init(
      key, x, *prefix_layers.abstract_inputs(cfg))["params"]}
  drafted = config.draft_vocab or target.vocab_size
  matrix = quantization.initializer(layers.INIT, cfg.weights)
  if config.markov_rank:
    for i, (name, rows) in enumerate((
        ("markov_in", target.vocab_size), ("markov_out", drafted)), 1):
      params[name] = matrix(jax.random.fold_in(key, i),
                            (rows, config.markov_rank), jnp.dtype(cfg.dtype))
  if config.draft_vocab:
    params["tokens"] = jnp.arange(drafted, dtype=jnp.int32)
    params["output"] = matrix(jax.random.fold_in(key, 3), (drafted, cfg.dim),
                              jnp.dtype(cfg.dtype))
  return params


def _config(folder):
  path, fields, target = folder.path, folder.fields, folder.target
  inner = fields.get("dflash_config", {})
  more = {**fields, **inner}
  formats.check_only(folder, more, _ONLY)
  for name in ("block_size", "mask_token_id"):
    if more.get(name) is None:
      raise ValueError(f"'{path}': no field {name!r}.")
  kept = formats.kept(folder, inner)
  if not kept:
    raise ValueError(f"'{path}': no field {formats.BLOCK_IDS!r} or "
                     f"{formats.IDS[1]!r}.")
  if more["mask_token_id"] >= target.vocab_size:
    raise ValueError(f"'{path}': mask_token_id={more['mask_token_id']}: the "
                     f"target has the tokens 0 to {target.vocab_size - 1}.")
  return Config(
      folder.layers(fields.get(formats.LAYER, fields), family="qwen3"),
      more["block_size"], more["mask_token_id"], len(kept),
      more.get("markov_rank", 0),
      from_root=more.get("sample_from_anchor",
                         formats.architecture(fields) in _DSPARK),
      causal=more.get("causal_head", False),
      draft_vocab=formats.draft_vocab(folder, more),
      markov_root=more.get("markov_root", True)), kept


def _names(config, _):
  names = {"network/fc/kernel": "fc.weight",
           "network/hidden_norm/scale": "hidden_norm.weight",
           "network/norm/scale": "norm.weight",
           "tokens": formats.OFFSETS,
           "markov_in": "markov_head.markov_w1.weight",
           "markov_out": "markov_head.markov_w2.weight"}
  for i in range(config.layers.num_layers):
    names |= formats.layer_names(f"network/layers/layer_{i}", f"layers.{i}")
  return names


def _fields(config, kept, dtype):
  if not config.layers.qk_norm:
    raise ValueError("qk_norm=False: layers of a block head normalise queries "
                     "and keys.")
  family = _DSPARK if config.markov_rank else _DFLASH
  return formats.layer_fields(config.layers, dtype) | {
      "architectures": [family[0]],
      "model_type": "qwen3", "block_size": config.block_size,
      "mask_token_id": config.mask_token,
      "target_layer_ids": list(kept),
      "markov_rank": config.markov_rank, "markov_head_type": "vanilla",
      "sample_from_anchor": config.from_root,
      "causal_head": config.causal, "markov_root": config.markov_root,
      "draft_vocab_size": config.draft_vocab}


def _predict(config, target, params, target_params, features, tokens, depth):
  """Drafts blocks after roots; the token before is the right one."""
  tokens = tokens[:, :-1]
  roots, positions = training.roots(tokens.shape[1], training.STRIDE, depth)
  spec, (batch, length) = assembly.Spec(config, target), tokens.shape
  count, places = len(roots), np.asarray(roots)
  state = _read(spec, params, target_params, _init(spec, batch, length),
                features, tokens, jnp.full(batch, length, jnp.int32))
  # Each root sees what is before it.
  state = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), state)
  state = state.replace(length=jnp.tile(jnp.asarray(places, jnp.int32), batch))
  logits = _start(spec, params, target_params, state,
                  tokens[:, places].reshape(-1), 0)
  logits = logits.reshape(batch, count, *logits.shape[1:])
  if config.markov_rank:
    before = np.minimum(places[:, None] + np.arange(config.depth), length - 1)
    logits += _bias(config, params, tokens[:, before],
                    np.arange(config.depth)[:, None])
  return logits.swapaxes(1, 2), positions


def _kind(markov_rank):
  def config(target, depth):
    inner = dataclasses.replace(formats.layer_of(target, 2), qk_norm=True,
                                tie_embeddings=False)
    return Config(inner, depth + (not markov_rank), 0, 3, markov_rank,
                  from_root=bool(markov_rank))

  return training.Kind(
      config, _predict, formats.three_layers,
      limited=lambda config, count: dataclasses.replace(
          config, draft_vocab=count))


# Those whose positions predict their own token; and the next one.
_DFLASH = ("DFlashDraftModel", "DFlashSpeculator")
_DSPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator")
# What changes the computation, and is not computed here unless it is so.
_ONLY = {"markov_head_type": "vanilla", "projector_type": "dflash"}
FORMAT = formats.Format(
    _config, _names, _fields, architectures=(*_DFLASH, *_DSPARK),
    known={"sample_from_anchor": formats.FLAG, "causal_head": formats.FLAG,
           "markov_root": formats.FLAG,
           "block_size": formats.Field(int, 2, 1 << 10),
           "mask_token_id": formats.Field(int, 0, 1 << 24),
           "markov_rank": formats.Field(int, 0, 1 << 20),
           "dflash_config": {}})
KINDS = {"dflash": _kind(0), "dspark": _kind(64)}
