"""Objectives of heads on a target's features: the target is their teacher.

A head predicts, after each text, what the target would say of the next tokens.
All of them are compared with the target's distributions, which come of the same
forward as the features; level l counts 0.8^l. Some heads make hidden states
too, which are compared with the target's own: of FSPAD they are another output
than the logits are of (partial alignment distillation, arXiv 2408.15562,
section 3.2), of Clover-2 and Chimera the same.
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
from models.heads import chimera
from models.heads import clover
from models.heads import eagle
from models.heads import hydra
from models.heads import medusa
from models.heads import target_ends

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
      distribution that each is compared with; -1 for none. Where there is a
      `feature_weight`, `[B, L, N, F]` after them: hidden states that stand for
      the normed ones of the target at these places.
    feature_weight: what their distance counts, of what the distributions do.
  """
  module: Any
  config: Callable[..., Any]
  kept: Callable[..., tuple[int, ...]]
  predict: Callable[..., Any]
  feature_weight: float = 0.0


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
    levels, gaps = _levels(*head, params, batch, target_params)
    weights = _DECAY**np.arange(len(levels))
    of_levels = [loss(*level) for level in levels]
    if gaps:
      of_levels = [x + head.kind.feature_weight * gap
                   for x, gap in zip(of_levels, gaps)]
    return sum(w * x for w, x in zip(weights, of_levels)) / weights.sum()

  return compute


def evaluator(head: Chosen):
  """Compiles `(params, batch, target_params) -> metrics`.

  The metrics are the `overlap` of the first level, sum_x min(t, d), that of the
  last one, `last_overlap`, and `tokens_a_call`, what a chain of them all would
  bring if the levels were independent.
  """
  @jax.jit
  def evaluate(params, batch, target_params):
    levels, _ = _levels(*head, params, batch, target_params)
    found = jnp.stack([1 - losses.total_variation(*level) for level in levels])
    return {"overlap": found[0], "last_overlap": found[-1],
            "tokens_a_call": 1 + jnp.cumprod(found).sum()}

  return evaluate


def _levels(kind, config, target, depth, params, batch, target_params):
  """Returns (teacher, student, weights) and feature distances of levels."""
  tokens = batch.tokens[:, :-1]
  logits, features = _scored(kind, target, target_params, tokens)
  features = tuple(map(jax.lax.stop_gradient, features))
  student, places, *made = kind.predict(config, target, params, target_params,
                                        features, batch.tokens, depth)
  weights = jnp.pad(batch.weights, ((0, 0), (0, 1)))
  found, gaps = [], []
  for level, at in enumerate(places):
    # What is beyond the window is compared with nothing.
    inside = (at >= 0) & (at < tokens.shape[1])
    at = np.where(inside, at, 0)
    found.append((jax.lax.stop_gradient(logits[:, at]), student[:, level],
                  weights[:, at] * inside[None]))
    if made:
      hidden = target_ends.norm(target, target_params, features[-1])
      gaps.append(losses.smooth_l1(
          jax.lax.stop_gradient(hidden[:, at]), made[0][:, level],
          found[-1][2]))
  return found, gaps


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
                   depth):
  found = eagle.unrolled(config, target, params, target_params, features,
                         tokens[:, 1:], depth)
  return found, _places_of_pairs(found.shape[2], depth)


def _predict_rounds(rounds, config, target, params, target_params, features,
                    tokens, depth):
  logits, made = rounds(config, target, params, target_params, features,
                        tokens[:, 1:], depth)
  return logits, _places_of_pairs(logits.shape[2], depth), made


def _predict_hydra(config, target, params, target_params, features, tokens,
                   depth):
  found = hydra.unrolled(config, target, params, target_params, features,
                         tokens[:, 1:], depth)
  return found, _places_of_pairs(found.shape[2], depth)


def _places_of_pairs(length, depth):
  """Returns places `[L, N]` of pairs that are the last of a path each."""
  order, rounds = np.arange(length)[None], np.arange(depth)[:, None]
  return np.where(order >= rounds, order + 1, -1)


def _predict_block(config, target, params, target_params, features, tokens,
                   depth):
  tokens = tokens[:, :-1]
  anchors = tuple(range(_STRIDE, tokens.shape[1], _STRIDE))
  found = block.predicted(config, target, params, target_params, features,
                          tokens, anchors)
  return found.swapaxes(1, 2), np.asarray(anchors)[None] + np.arange(
      depth)[:, None]


def _block_config(target, depth, markov_rank, layers=2):
  inner = dataclasses.replace(target, num_layers=layers, qk_norm=True,
                              scan_layers=False, tie_embeddings=False)
  return block.Config(inner, depth + (not markov_rank), 0, 3, markov_rank,
                      from_root=bool(markov_rank))


def _eagle_config(target, depth, version, **more):
  del depth
  layer = dataclasses.replace(_layers(target, 1), tie_embeddings=False)
  return eagle.Config(layer, version, **more)


def _layers(target, count):
  return dataclasses.replace(target, num_layers=count, scan_layers=False)


def _last(target):
  return (target.num_layers - 1,)


KINDS = {
    "medusa": Kind(medusa, lambda target, depth: medusa.Config(depth), _last,
                   _predict_medusa),
    "eagle": Kind(eagle, lambda target, depth: _eagle_config(target, depth, 1),
                  _last, _predict_eagle),
    "eagle3": Kind(eagle, lambda target, depth: _eagle_config(target, depth, 3),
                   eagle.taps, _predict_eagle),
    "fspad": Kind(eagle, lambda target, depth: _eagle_config(
        target, depth, 1, bias=True, sampled_features=True, decoupled=True),
                  _last, functools.partial(_predict_rounds, eagle.rounds), 10),
    "hydra": Kind(hydra, lambda target, depth: hydra.Config(depth), _last,
                  _predict_hydra),
    "hydra++": Kind(hydra, lambda target, depth: hydra.Config(
        depth, prefix=_layers(target, 1)), _last, _predict_hydra),
    "clover": Kind(clover, lambda target, depth: clover.Config(
        _layers(target, 2)), _last,
                   functools.partial(_predict_rounds, clover.rounds), 10),
    "chimera": Kind(chimera, lambda target, depth: chimera.Config(
        _layers(target, 1), depth), _last,
                    functools.partial(_predict_rounds, chimera.rounds), 1),
    "dflash": Kind(block, lambda target, depth: _block_config(target, depth, 0),
                   eagle.taps, _predict_block),
    "dspark": Kind(block,
                   lambda target, depth: _block_config(target, depth, 64),
                   eagle.taps, _predict_block),
}
