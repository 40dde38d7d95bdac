"""Objectives of heads on a target's features: the target is their teacher.

A head predicts, after each text, what the target would say of the next tokens.
All of them are compared with the target's distributions, which come of the same
forward as the features; level l counts 0.8^l.
"""

import dataclasses
import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from experiments.training import losses
from models import transformer
from models.heads import block
from models.heads import eagle
from models.heads import medusa
from models.heads import mtp
from models.heads import prompt_tokens

# What the loss of a level counts, of that of the level before.
_DECAY = 0.8
# Tokens from one root of a block to the next.
_STRIDE = 4


class Kind(NamedTuple):
  """A kind of heads.

  Attributes:
    module: that has `head` and `init`.
    config: `(target, depth) -> config` of its sizes.
    kept: `(target) -> layers` whose outputs it reads.
    predict: `(config, target, params, target_params, features, tokens, depth)
      -> (logits [B, L, N, V], places [L, N])`: the place of the target's
      distribution that each is compared with; -1 for none.
  """
  module: Any
  config: Callable[..., Any]
  kept: Callable[..., tuple[int, ...]]
  predict: Callable[..., Any]


class Chosen(NamedTuple):
  """A head to be trained.

  Attributes:
    kind: one of `KINDS`.
    config: of the head.
    target: the architecture of its target.
    depth: levels that it is to draft.
  """
  kind: Kind
  config: Any
  target: transformer.Config
  depth: int

  @property
  def kept(self) -> tuple[int, ...]:
    """Layers of the target that it reads."""
    return self.kind.kept(self.target)


def choose(name: str, target: transformer.Config, depth: int) -> Chosen:
  """Returns a head for a target, see `KINDS`.

  Args:
    name: of the kind.
    target: the architecture of the target.
    depth: levels that it is to draft.
  """
  kind = KINDS[name]
  return Chosen(kind, kind.config(target, depth), target, depth)


def init(key, head: Chosen):
  """Returns random parameters of a head."""
  more = (len(head.kept),) if head.kind.module is eagle else ()
  return head.kind.module.init(key, head.config, head.target, *more)


def lm(kind: Kind, target: transformer.Config):
  """Returns the target as a model that keeps what a kind of heads reads."""
  return transformer.with_features(target, tuple(sorted(set(
      kind.kept(target)))))


def objective(head: Chosen, loss):
  """Returns `(params, batch, target_params) -> loss`.

  Args:
    head: to be trained.
    loss: of `losses.DISTILLATION`.
  """
  def compute(params, batch, target_params):
    levels = _levels(*head, params, batch, target_params)
    weights = _DECAY**np.arange(len(levels))
    return sum(w * loss(teacher, student, counts) for w, (
        teacher, student, counts) in zip(weights, levels)) / weights.sum()

  return compute


def evaluator(head: Chosen):
  """Compiles `(params, batch, target_params) -> metrics`.

  The metrics are the `overlap` of the first level, sum_x min(t, d), that of the
  last one, `last_overlap`, and `tokens_a_call`, what a chain of them all would
  bring if the levels were independent.
  """
  @jax.jit
  def evaluate(params, batch, target_params):
    levels = _levels(*head, params, batch, target_params)
    found = jnp.stack([1 - losses.total_variation(*level) for level in levels])
    return {"overlap": found[0], "last_overlap": found[-1],
            "tokens_a_call": 1 + jnp.cumprod(found).sum()}

  return evaluate


def _levels(kind, config, target, depth, params, batch, target_params):
  """Returns (teacher, student, weights) of each level."""
  tokens = batch.tokens[:, :-1]
  logits, features = _scored(kind, target, target_params, tokens)
  features = tuple(map(jax.lax.stop_gradient, features))
  student, places = kind.predict(config, target, params, target_params,
                                 features, batch.tokens, depth)
  weights = jnp.pad(batch.weights, ((0, 0), (0, 1)))
  found = []
  for level, at in enumerate(places):
    # What is beyond the window is compared with nothing.
    inside = (at >= 0) & (at < tokens.shape[1])
    at = np.where(inside, at, 0)
    found.append((jax.lax.stop_gradient(logits[:, at]), student[:, level],
                  weights[:, at] * inside[None]))
  return found


def _scored(kind, target, target_params, tokens):
  """Returns the target's logits, and the features in the order of the head."""
  kept = kind.kept(target)
  model, (batch, length) = lm(kind, target), tokens.shape
  empty = model.init_cache(batch, length)
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)),
                          (batch, length, length))
  logits, read = model.forward(
      target_params, tokens,
      jnp.broadcast_to(jnp.arange(length), tokens.shape),
      model.init_cache(batch, 0), dj.Block(empty.keys, empty.values,
                                           empty.features), 0, mask)
  by_layer = dict(zip(sorted(set(kept)), read.features))
  return logits, tuple(by_layer[i] for i in kept)


def _predict_medusa(config, target, params, target_params, features, tokens,
                    depth):
  del tokens
  found = medusa.predicted(config, target, params, target_params, features)
  order = np.arange(found.shape[2])
  return found, order[None] + 1 + np.arange(depth)[:, None]


def _predict_eagle(config, target, params, target_params, features, tokens,
                   depth, unrolled=eagle.unrolled):
  found = unrolled(config, target, params, target_params, features,
                   tokens[:, 1:], depth)
  order, rounds = np.arange(found.shape[2])[None], np.arange(depth)[:, None]
  return found, np.where(order >= rounds, order + 1, -1)


def _predict_block(config, target, params, target_params, features, tokens,
                   depth):
  tokens = tokens[:, :-1]
  anchors = tuple(range(_STRIDE, tokens.shape[1], _STRIDE))
  found = block.predicted(config, target, params, target_params, features,
                          tokens, anchors)
  return found.swapaxes(1, 2), np.asarray(anchors)[None] + np.arange(
      depth)[:, None]


def _predict_prompts(config, target, params, target_params, features, tokens,
                     depth):
  del features
  anchors = tuple(range(0, tokens.shape[1] - 1, _STRIDE))
  found = prompt_tokens.predicted(config, target, params, target_params,
                                  tokens[:, :-1], anchors)
  return found.swapaxes(1, 2), np.asarray(anchors)[None] + 1 + np.arange(
      depth)[:, None]


def _block_config(target, depth, markov_rank, layers=2):
  inner = dataclasses.replace(target, num_layers=layers, qk_norm=True,
                              scan_layers=False, tie_embeddings=False)
  return block.Config(inner, depth + (not markov_rank), 0, 3, markov_rank,
                      from_root=bool(markov_rank))


def _eagle_config(target, depth, version):
  del depth
  return eagle.Config(dataclasses.replace(
      target, num_layers=1, scan_layers=False, tie_embeddings=False), version)


def _last(target):
  return (target.num_layers - 1,)


KINDS = {
    "medusa": Kind(medusa, lambda target, depth: medusa.Config(depth), _last,
                   _predict_medusa),
    "eagle": Kind(eagle, lambda target, depth: _eagle_config(target, depth, 1),
                  _last, _predict_eagle),
    "eagle3": Kind(eagle, lambda target, depth: _eagle_config(target, depth, 3),
                   eagle.taps, _predict_eagle),
    "mtp": Kind(mtp, lambda target, depth: mtp.Config(mtp.layer_of(target)),
                _last, functools.partial(_predict_eagle,
                                         unrolled=mtp.unrolled)),
    "ppd": Kind(prompt_tokens,
                lambda target, depth: prompt_tokens.Config(depth), _last,
                _predict_prompts),
    "dflash": Kind(block, lambda target, depth: _block_config(target, depth, 0),
                   eagle.taps, _predict_block),
    "dspark": Kind(block,
                   lambda target, depth: _block_config(target, depth, 64),
                   eagle.taps, _predict_block),
}
