"""Block drafters: one forward drafts several tokens.

A few layers read the root and a mask for each further token, attending to each
other and to their own projections of the target's features. DFlash's slots
depend on no drafted token: the distribution is a product; JetSpec's are causal.
DSpark, Domino and DFlash 2 change a slot's logits by the tokens drafted before
it (`parts.path_logits`), at a few small products a level.

Formats were read in z-lab/dflash (model.py), deepseek-ai/DeepSpec
(deepspec/modeling/dspark) and sgl-project/SpecForge (modeling/draft/domino.py).
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
from models.heads.parts import convolutions
from models.heads.parts import formats
from models.heads.parts import path_logits
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import decoder
from models.transformer import layers
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
  # Rank of DSpark's bias by the token before; 0 for none
  markov_rank: int = 0
  # Whether the position of a token predicts the next one, so that a block
  # drafts `block_size` tokens; else its own, and it drafts one less
  from_root: bool = False
  causal: bool = False  # Whether positions attend to those before them alone
  # Tokens that it can draft, `params["tokens"]`, with their rows of the
  # target's output layer, `params["output"]`; 0: all
  draft_vocab: int = 0
  # Of Domino, 0 for none: the state of its GRU, and the inner width of its MLP;
  # and how many levels it leaves as they are
  gru_hidden_dim: int = 0
  emb_dim: int = 0
  pure_draft_prefix_len: int = 0
  # Of DFlash 2, 0 for none: the rank of its bias, and the tokens of a slot that
  # get it; tokens that its convolutions see, and channels of a group
  selector_rank: int = 0
  selector_top_k: int = 0
  conv_kernel_size: int = 0
  conv_group_size: int = 0

  def __post_init__(self):
    if self.layers.scan_layers:
      raise ValueError("block drafters need scan_layers=False.")
    if self.block_size < 2:
      raise ValueError(f"block_size={self.block_size}: at least 2 are needed.")
    for count, names in ((1, ("markov_rank", _DOMINO[0], _DFLASH2[0])),
                         (2, _DOMINO[:2]), (2, _DFLASH2[:2]),
                         (2, _DFLASH2[2:])):
      sizes = {name: getattr(self, name) for name in names}
      if sum(map(bool, sizes.values())) not in (0, count):
        raise ValueError(f"block head: {sizes}: none or {count} of these may "
                         "be above 0.")
    if not self.causal and 0 < self.layers.window < self.block_size:
      raise ValueError(f"block_size={self.block_size}: at most window="
                       f"{self.layers.window} of the layers, or causal=True.")
    if self.conv_kernel_size:
      convolutions.check(self)

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
    self.layers = (decoder.Unrolled(cfg) if not self.config.conv_kernel_size
                   else convolutions.Layers(self.config))

  def __call__(self, x, cache, block, seen):
    """Returns what the layers make of a block, `[B, T, F]`, normed."""
    if self.is_initializing():
      self.project((jnp.zeros_like(x),) * self.config.num_features)
    x, *_ = self.layers(x, cache, block, 0, seen)
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
  x = x if config.from_root else x[:, 1:]
  return path_logits.Slots(
      target_ends.logits(spec.target, target_params, x, params.get("output")),
      x, path_logits.init_states(config, batch, nodes))


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  del state
  states = draft.states
  if states is not None:
    states = (states[:, :1] if nodes.is_root
              else assembly.above(states, tree, nodes))
  slot = path_logits.Slots(*(
      jax.lax.dynamic_slice_in_dim(x, level, 1, 1) for x in draft[:2]), states)
  logits, states = path_logits.after(spec, params, target_params, slot,
                                     nodes.of(tree.tokens, 1), level)
  logits = target_ends.spread(spec.target, logits, params.get("tokens"))
  if states is not None:
    draft = draft._replace(states=assembly.put(draft.states, states, nodes))
  return jnp.broadcast_to(
      logits, (len(logits), nodes.width, logits.shape[-1])), draft


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
  """Returns random parameters: `network`; what changes logits by the tokens
  before, see `path_logits`; and, if the N tokens that it can draft are not all,
  `tokens [N]` int32, the first ones, and their rows `output [N, F]` of the
  target's."""
  cfg = config.layers
  keys = jax.random.split(key, 3)
  x = jax.ShapeDtypeStruct((1, 1, cfg.dim), jnp.dtype(cfg.dtype))
  drafted = config.draft_vocab or target.vocab_size
  params = {"network": _Network(config).lazy_init(
      keys[0], x, *prefix_layers.abstract_inputs(cfg))["params"],
            **path_logits.init(keys[1], config, target.vocab_size, drafted)}
  if config.draft_vocab:
    params["tokens"] = jnp.arange(drafted, dtype=jnp.int32)
    params["output"] = quantization.initializer(layers.INIT, cfg.weights)(
        keys[2], (drafted, cfg.dim), jnp.dtype(cfg.dtype))
  return params


def _config(folder):
  path, fields, target = folder.path, folder.fields, folder.target
  inner = fields.get("dflash_config", {})
  more = {**fields, **inner}
  formats.check_only(folder, more, _ONLY | {
      "projector_type": "domino" if _DOMINO[0] in more else "dflash",
      "input_embedding_scale": target.embedding_scale,
      "output_multiplier": 1 / target.logit_divisor,
      "final_logit_softcapping": target.logit_softcap})
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
  layers_ = folder.layers(fields.get(formats.LAYER, fields), family="qwen3",
                          windows=True)
  return Config(
      layers_, more["block_size"], more["mask_token_id"], len(kept),
      more.get("markov_rank", 0),
      from_root=more.get("sample_from_anchor", more.get(
          "shift_label", formats.architecture(fields) in _DSPARK)),
      # Layers with a window are causal, but for SpecForge's Domino.
      causal=more.get("causal_head", more.get(
          "is_causal", layers_.window > 0 and _DOMINO[0] not in more)),
      draft_vocab=formats.draft_vocab(folder, more),
      **{name: more[name] for name in (*_DOMINO, *_DFLASH2) if name in more}
  ), kept


def _names(config, _):
  names = {"network/fc/kernel": "fc.weight",
           "network/hidden_norm/scale": "hidden_norm.weight",
           "network/norm/scale": "norm.weight",
           "tokens": formats.OFFSETS, **path_logits.NAMES}
  for i in range(config.layers.num_layers):
    ours, theirs = f"network/layers/layer_{i}", f"layers.{i}"
    names |= formats.layer_names(ours, theirs)
    for conv in ("attention_conv", "mlp_conv"):
      names[f"{ours}/{conv}/base_kernel"] = f"{theirs}.{conv}.base_kernel"
      names[f"{ours}/{conv}/kernel_projection"] = (
          f"{theirs}.{conv}.kernel_projection.weight")
  return names


def _fields(config, kept, dtype):
  if not config.layers.qk_norm:
    raise ValueError("qk_norm=False: layers of a block head normalise queries "
                     "and keys.")
  name = (_DSPARK if config.markov_rank else _DFLASH)[0]
  inner = {x: getattr(config, x) for x in (*_DOMINO, *_DFLASH2)
           if getattr(config, x)}
  if config.gru_hidden_dim:
    name = "DominoDraftModel"
    inner |= {"projector_type": "domino", "shift_label": config.from_root}
  elif inner:
    name = "DFlash2DraftModel"
  windows = {"sliding_window": config.layers.window, "layer_types": [
      "sliding_attention"] * config.layers.num_layers}
  return formats.layer_fields(config.layers, dtype) | {
      "architectures": [name], **({"dflash_config": inner} if inner else {}),
      **(windows if config.layers.window else {}),
      "model_type": "qwen3", "block_size": config.block_size,
      "mask_token_id": config.mask_token,
      "target_layer_ids": list(kept),
      "markov_rank": config.markov_rank, "markov_head_type": "vanilla",
      "sample_from_anchor": config.from_root,
      "causal_head": config.causal,
      "draft_vocab_size": config.draft_vocab}


def _predict(config, target, params, target_params, features, tokens, depth):
  """Drafts blocks after roots; tokens before are the text's. What DFlash 2 does
  not draft keeps its logits: a loss of -inf would teach nothing."""
  tokens = tokens[:, :-1]
  roots, positions = training.roots(tokens.shape[1], training.STRIDE, depth)
  spec, (batch, length) = assembly.Spec(config, target), tokens.shape
  count, places = len(roots), np.asarray(roots)
  state = _read(spec, params, target_params, _init(spec, batch, length),
                features, tokens, jnp.full(batch, length, jnp.int32))
  # Each root sees what is before it.
  state = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), state)
  state = state.replace(length=jnp.tile(jnp.asarray(places, jnp.int32), batch))
  draft = _start(spec, params, target_params, state,
                 tokens[:, places].reshape(-1), 1)
  before = tokens[:, np.minimum(places[:, None] + np.arange(config.depth),
                                length - 1)].reshape(batch * count, -1)
  states, levels = draft.states, []
  for level in range(config.depth):
    at = slice(level, level + 1)
    slot = path_logits.Slots(*(x[:, at] for x in draft[:2]), states)
    logits, states = path_logits.after(spec, params, target_params, slot,
                                       before[:, at], level, slot.logits)
    levels.append(logits.reshape(batch, count, -1))
  return jnp.stack(levels, axis=1), positions


def _kind(from_root=False, **sizes):
  def config(target, depth):
    inner = dataclasses.replace(formats.layer_of(target, 2), qk_norm=True,
                                tie_embeddings=False)
    return Config(inner, depth + (not from_root), 0, 3, from_root=from_root,
                  **sizes)

  return training.Kind(
      config, _predict, formats.three_layers,
      limited=lambda config, count: dataclasses.replace(
          config, draft_vocab=count))


# Those whose positions predict their own token; and the next one.
_DFLASH = ("DFlashDraftModel", "DFlashSpeculator")
_DSPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator")
# Fields that files of Domino and of DFlash 2 have besides.
_DOMINO = ("gru_hidden_dim", "emb_dim", "pure_draft_prefix_len")
_DFLASH2 = ("selector_rank", "selector_top_k", "conv_kernel_size",
            "conv_group_size")
# What changes the computation, and is not computed here unless it is so.
_ONLY = {"markov_head_type": "vanilla", "use_hidden_proj": False}
FORMAT = formats.Format(
    _config, _names, _fields,
    architectures=(*_DFLASH, *_DSPARK, "DominoDraftModel", "DFlash2DraftModel"),
    known={**dict.fromkeys(("sample_from_anchor", "causal_head", "shift_label",
                            "use_hidden_proj", "is_causal"),
                           formats.FLAG),
           **dict.fromkeys(("markov_rank", *_DOMINO, *_DFLASH2),
                           formats.Field(int, 0, 1 << 20)),
           "block_size": formats.Field(int, 2, 1 << 10),
           "mask_token_id": formats.Field(int, 0, 1 << 24),
           "projector_type": formats.WORD,
           "dflash_config": {}},
    select=lambda tensors: {name.removeprefix("logit_head."): x
                            for name, x in tensors.items()})
KINDS = {"dflash": _kind(), "dspark": _kind(True, markov_rank=64),
         "domino": _kind(True, gru_hidden_dim=64, emb_dim=64,
                         pure_draft_prefix_len=1),
         "dflash2": _kind(selector_rank=64, selector_top_k=16,
                          conv_kernel_size=2, conv_group_size=16)}
