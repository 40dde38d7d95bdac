"""Objectives of heads on a target's features: the target is their teacher.

A head predicts, after each text, what the target would say of the next tokens.
All of them are compared with the target's distributions, which come of the same
forward as the features; level l counts 0.8^l, but for losses of whole paths.
Some heads make hidden states too, which are compared with the target's own
(partial alignment distillation, arXiv 2408.15562, section 3.2).

A head may draft the most frequent tokens alone: its output layer is then rows
of the target's, which are not learned, and it is compared with the target's
distribution of these tokens (EAGLE-3; SpecForge).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.kernels import vocabulary
from experiments.training import losses
from experiments.training import on_mesh
from models import heads
from models import transformer
from models.heads.parts import target_ends
from models.heads.parts import training

# What the loss of a level counts, relative to the level before.
_DECAY = 0.8


# `KINDS` of all files of `models.heads`, by name.
KINDS = {name: recipe._replace(module=module)
         for module in heads.modules().values()
         for name, recipe in getattr(module, "KINDS", {}).items()}


class Chosen(NamedTuple):
  """A head to be trained."""
  kind: training.Kind  # one of `KINDS`
  config: Any
  target: transformer.Config  # the architecture of its target
  depth: int  # levels that it is to draft
  # `[N]` int32 that it can draft, ascending; None for all.
  tokens: np.ndarray | None = None

  @property
  def kept(self) -> tuple[int, ...]:
    """Layers of the target that it reads."""
    return self.kind.kept(self.target)

  @property
  def features(self) -> tuple[int, ...]:
    """Layers of the target that training reads: logits come of the last one."""
    return tuple(sorted({*self.kept, self.target.num_layers - 1}))


def choose(name: str, target: transformer.Config, depth: int,
           tokens: np.ndarray | None = None, layers: int = 0,
           markov_rank: int = 0) -> Chosen:
  """Returns a head of a name in `KINDS` for a target."""
  # `tokens` `[N]` int32, ascending, are those that it can draft, None for all;
  # `layers` of a block drafter, 0 for two; `markov_rank` of `dspark`, 0 for 64.
  recipe = KINDS[name]
  config = recipe.config(target, depth)
  if layers:
    config = dataclasses.replace(config, layers=dataclasses.replace(
        config.layers, num_layers=layers))
  if markov_rank:
    config = dataclasses.replace(config, markov_rank=markov_rank)
  if tokens is not None:
    if not recipe.limited:
      raise ValueError(f"head {name!r} drafts all tokens.")
    config = recipe.limited(config, len(tokens))
  return Chosen(recipe, config, target, depth, tokens)


def init(key, head: Chosen, target_params=None):
  """Returns float32 parameters to learn; some begin with the target's."""
  params = _initial(key, head, target_params)
  return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def _initial(key, head, target_params):
  params = head.kind.module.init(key, head.config, head.target)
  if head.tokens is not None:
    return {name: x for name, x in params.items()
            if name not in ("tokens", "output")}
  if head.kind.begin and target_params is not None:
    return head.kind.begin(params, head.target, target_params)
  return params


def complete(head: Chosen, params, target_params):
  """Returns parameters with those that are not learned."""
  if head.tokens is None:
    return params
  tokens = jnp.asarray(head.tokens, jnp.int32)
  return {**params, "tokens": tokens, "output": target_ends.output_rows(
      head.target, target_params, tokens)}


def features(head: Chosen, target_params, tokens):
  """Returns states of the target at tokens `[B, T]`: `[B, T, F]` a layer."""
  model = transformer.with_features(head.target, head.features)
  return transformer.causal_pass(model, target_params, tokens)[1].features[
      dj.HIDDEN_STATES]


def objective(head: Chosen, loss, mesh=None):
  """Returns `(params, batch, target_params) -> loss`."""
  joint = loss in losses.PATHS.values()
  levels_of = on_mesh.by_rows(mesh, lambda params, batch: _levels(
      head, params[0], batch, params[1], False, joint))

  def compute(params, batch, target_params):
    levels, hidden = levels_of((params, target_params), batch)
    weights = _DECAY**np.arange(len(levels))
    of_levels = [0.0 if joint else loss(*level[:3]) for level in levels]
    if hidden:
      of_levels = [
          x + head.kind.feature_weight * losses.smooth_l1(*pair, level[2])
          for x, pair, level in zip(of_levels, hidden, levels)]
    whole = sum(w * x for w, x in zip(weights, of_levels)) / weights.sum()
    if joint:
      teacher, student, seen, tokens = (
          jnp.stack(x, axis=1) for x in zip(*levels))
      whole += loss(teacher, student, tokens, seen)
    return whole

  return compute


def evaluator(head: Chosen, mesh=None):
  """Compiles `(params, batch, target_params) -> metrics`."""
  # `overlap` of the first level, sum_x min(t, d); of the last one; and
  # what a chain of them all would bring if the levels were independent.
  levels_of = on_mesh.by_rows(mesh, lambda params, batch: _levels(
      head, params[0], batch, params[1], True))

  @jax.jit
  def evaluate(params, batch, target_params):
    levels, _ = levels_of((params, target_params), batch)
    rates = jnp.stack([1 - losses.total_variation(*level[:3])
                       for level in levels])
    return {"overlap": rates[0], "last_overlap": rates[-1],
            "tokens_a_call": 1 + jnp.cumprod(rates).sum()}

  return evaluate


def _levels(head, params, batch, target_params, whole, paths=False):
  """Returns (teacher, student, weights, tokens) and features, by levels."""
  # `tokens` are what follows in the text. With `paths` entry n of each level is
  # of the same path.
  tokens = batch.tokens[:, :-1]
  levels = batch.features or features(head, target_params, tokens)
  # On disk they have 16 bits.
  by_layer = {i: jax.lax.stop_gradient(x).astype(head.target.dtype)
              for i, x in zip(head.features, levels, strict=True)}
  params = jax.tree.map(lambda x: x.astype(head.target.dtype), params)
  params = complete(head, params, target_params)
  hidden = jax.lax.stop_gradient(target_ends.norm(
      head.target, target_params, by_layer[head.target.num_layers - 1]))
  logits = jax.lax.stop_gradient(vocabulary.split(target_ends.logits(
      head.target, target_params, hidden,
      None if whole else params.get("output"))))
  student, places, *made = head.kind.predict(
      head.config, head.target, params, target_params,
      tuple(by_layer[i] for i in head.kept), batch.tokens, head.depth)
  if whole:
    student = target_ends.spread(head.target, student, params.get("tokens"))
  # A split, since its gradient is a concatenation, and not a sum over levels.
  student = jax.lax.split(student, (1,) * len(places), axis=1)
  levels, pairs = [], []
  for level, at in enumerate(places):
    of_level = student[level][:, 0]
    features_made = made[0][:, level] if made else None
    if paths:
      at, columns = places[0] + level, np.searchsorted(at, places[0] + level)
      columns = np.minimum(columns, of_level.shape[1] - 1)
      of_level = of_level[:, columns]
      features_made = features_made[:, columns] if made else None
    # What is beyond the window is compared with nothing.
    inside = (at >= 0) & (at < tokens.shape[1])
    at = np.where(inside, at, 0)
    levels.append((logits[:, at], vocabulary.split(of_level),
                   batch.weights[:, at] * inside[None],
                   batch.tokens[:, at + 1]))
    if made:
      pairs.append((hidden[:, at], features_made))
  return levels, pairs
