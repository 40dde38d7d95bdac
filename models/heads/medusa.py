"""Medusa (arXiv 2401.10774): heads that each predict one of the next tokens.

Head i predicts, from the target's last hidden state at a token, the token i + 1
positions after it: the draft distribution is a product. A step costs the heads
once, however large the tree.
"""

import dataclasses
import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.types import Head
from models.folders import json_files
from models.heads.parts import assembly
from models.heads.parts import formats
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of the heads."""
  heads: int = 4  # How many there are: the levels that they can draft
  blocks: int = 1  # Residual blocks of a head before its output layer
  # Format of matrices, one of `quantization.WEIGHTS`
  weights: str = quantization.DTYPE


class _Heads(nn.Module):
  """All heads, `[B, F] -> [B, H, V]`."""
  config: Config
  target: Any

  @nn.compact
  def __call__(self, x):
    cfg, dtype = self.config, jnp.dtype(self.target.dtype)
    logits = []
    for i in range(cfg.heads):
      y = x
      for j in range(cfg.blocks):
        y += nn.silu(layers.Linear(self.target.dim, True, dtype, cfg.weights,
                                   name=f"head_{i}_block_{j}")(y))
      table = self.param(
          f"head_{i}_out", quantization.initializer(layers.INIT, cfg.weights),
          (self.target.vocab_size, self.target.dim), dtype)
      logits.append(linear_ops.matmul(y, table))
    return jnp.stack(logits, axis=1)


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns Medusa heads on a target that keeps its last layer's output."""
  return assembly.head(
      assembly.Spec(config, target),
      (functools.partial(prefix_layers.init_state, None, target), _read,
       _start, assembly.without_state), init, depth=config.heads)


def _read(spec, params, target_params, state, features, tokens, count):
  del params, tokens
  x = target_ends.norm(spec.target, target_params, features[0])
  return prefix_layers.read(None, None, x, state, count)


def _start(spec, params, target_params, state, root, nodes):
  """Returns logits `[B, H, V]`."""
  del target_params, root, nodes
  return _Heads(*spec[:2]).apply({"params": params}, state.hidden)


def init(key, config: Config, target):
  """Returns random parameters."""
  shape = jax.ShapeDtypeStruct((1, target.dim), jnp.dtype(target.dtype))
  return _Heads(config, target).lazy_init(key, shape)["params"]


def _config(folder):
  matches = {name: re.match(r"(\d{1,3})\.(\d{1,3})\.", name)
             for name in folder.tensors}
  other = next((name for name, match in matches.items() if not match), "")
  if other or not matches:
    raise ValueError(f"'{folder.path}': tensor {json_files.shortened(other)} "
                     "is not one of Medusa, <head>.<block>.")
  last_head, blocks = (max(int(match[i]) for match in matches.values())
                       for i in (1, 2))
  return Config(last_head + 1, blocks), formats.last(folder.target)


def _names(config, _):
  names = {f"head_{i}_out": f"{i}.{config.blocks}.weight"
           for i in range(config.heads)}
  for i in range(config.heads):
    for j in range(config.blocks):
      names |= formats.linear(f"head_{i}_block_{j}", f"{i}.{j}.linear")
  return names


def _fields(config, *_):
  return {"medusa_num_heads": config.heads, "medusa_num_layers": config.blocks}


def _predict(config, target, params, target_params, features, tokens, depth):
  """Head i predicts the token i + 2 places after."""
  x = target_ends.norm(target, target_params, features[0])
  logits = _Heads(config, target).apply({"params": params},
                                        x.reshape(-1, x.shape[-1]))
  logits = logits.reshape(*x.shape[:2], *logits.shape[1:]).swapaxes(1, 2)
  return logits, 1 + np.arange(logits.shape[2])[None] + (
      np.arange(depth)[:, None])


FORMAT = formats.Format(
    _config, _names, _fields, "medusa_num_heads",
    holds=lambda tensors: any(name.startswith("0.0.") for name in tensors),
    files=({"medusa_lm_head.safetensors": ""}, {"medusa_lm_head.pt": ""}, {}),
    known=dict.fromkeys(("medusa_num_heads", "medusa_num_layers"),
                        formats.COUNT))
KINDS = {"medusa": training.Kind(lambda target, depth: Config(depth), _predict,
                                 begin=training.from_output_layer)}
