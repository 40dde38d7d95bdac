"""Prompt tokens of parallel prompt decoding (arXiv 2405.18628).

Only their embeddings are trained: after the i-th of them the target itself
predicts the token i + 1 positions on.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import LanguageModel
from models import transformer
from models.heads.parts import formats
from models.heads.parts import training
from models.transformer import layers


@dataclasses.dataclass(frozen=True)
class Config:
  """Attributes: `prompts`, how many prompt tokens there are."""
  prompts: int = 3


def target(config: Config, architecture) -> LanguageModel:
  """Returns the target that knows prompt tokens."""
  return transformer.with_prompts(architecture, config.prompts)


def with_chains(config: Config, architecture, params, tokens,
                anchors: tuple[int, ...]):
  """Returns what the target says of texts, and guesses after A anchors.
  `params` are the target's and `init`'s. Returns logits `[B, T, V]` of
  tokens `[B, T]`, and `[B, A, prompts, V]` of the tokens from the second one
  after each anchor."""
  (batch, length), count = tokens.shape, config.prompts
  places, order = np.asarray(anchors), np.arange(count)
  chains = jnp.broadcast_to(jnp.asarray(np.tile(-1 - order, len(places)),
                                        jnp.int32)[None],
                            (batch, count * len(places)))
  positions, mask = training.with_chains(length, places, count)
  size = len(positions)
  model = target(config, architecture)
  empty = model.init_cache(batch, 0)
  logits, _ = model.forward(
      params, jnp.concatenate([tokens, chains], axis=1),
      jnp.broadcast_to(positions, (batch, size)),
      empty, cache_lib.init_block(empty, size), 0,
      jnp.broadcast_to(mask, (batch, size, size)))
  return logits[:, :length], logits[:, length:].reshape(
      batch, len(places), count, -1)


def init(key, config: Config, architecture):
  """Returns random parameters, a dict of `prompts [prompts, F]`."""
  width = architecture.embedding_dim or architecture.dim
  return {"prompts": layers.INIT(key, (config.prompts, width),
                                 jnp.dtype(architecture.dtype))}


def _config(folder):
  shape = getattr(folder.tensors.get(_TENSOR), "shape", ())
  return Config((*shape, 1)[0]), formats.last(folder.target)


def _fields(config, *_):
  return {"architectures": [_ARCHITECTURE],
          "num_virtual_tokens": config.prompts}


def _predict(config, architecture, params, target_params, features, tokens,
             depth):
  del features
  tokens = tokens[:, :-1]
  anchors, positions = training.roots(tokens.shape[1], 0, depth)
  _, guesses = with_chains(config, architecture, {**target_params, **params},
                           tokens, anchors)
  return guesses.swapaxes(1, 2), positions + 1


_ARCHITECTURE, _TENSOR = "PromptDecoder", "prompt_embeddings"
FORMAT = formats.Format(_config, lambda config, tensors: {"prompts": _TENSOR},
                        _fields, architectures=(_ARCHITECTURE,))
KINDS = {"ppd": training.Kind(lambda target, depth: Config(depth), _predict)}
