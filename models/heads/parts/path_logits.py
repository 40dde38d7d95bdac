"""Logits of a block's slots, given the tokens drafted before them.

A block's layers see no drafted token. DSpark adds a low-rank bias by the token
before; Domino (arXiv 2605.29707) an MLP of the slot's output and of a GRU over
the root and the tokens after it; DFlash 2 adds such a bias, gated by the slot's
output, to the slot's most probable tokens, and drafts no others. In a tree,
each node then has the exact distribution after its own path.

Formats were read in sgl-project/SpecForge@40f8587a (modeling/draft/domino.py)
and z-lab/dflash@07ebd93d (dflash/model.py).
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.types import Array
from models.heads.parts import target_ends
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization

NAMES = {
    "markov_in": "markov_head.markov_w1.weight",
    "markov_out": "markov_head.markov_w2.weight",
    "recurrence/inputs/kernel": "prefix_gru.weight_ih_l0",
    "recurrence/state/kernel": "prefix_gru.weight_hh_l0",
    "recurrence/hidden/kernel": "embed_proj.0.weight",
    "recurrence_out": "embed_proj.2.weight",
    "predecessors": "candidate_selector.predecessor_codebook",
    "successors": "candidate_selector.successor_codebook",
    "gate/kernel": "candidate_selector.hidden_projection.weight"}


class Slots(NamedTuple):
  """What layers make of L slots: logits of N tokens, of the outputs; and the
  states of Domino's GRU at inner nodes or, of one slot, above its nodes."""
  logits: Array  # `[B, L, N]`
  outputs: Array  # `[B, L, F]`
  states: Array | None  # `[B, I, G]`; None for heads without a GRU


class _Recurrence(nn.Module):
  """Domino's GRU, as `torch.nn.GRU` without biases, and its MLP's first
  layer."""
  config: Any

  @nn.compact
  def __call__(self, output, embedding, above):
    cfg = self.config
    linear = functools.partial(_linear, cfg)
    (reset, update, new), (reset_, update_, new_) = (
        jnp.split(linear(3 * cfg.gru_hidden_dim, name=name)(x), 3, axis=-1)
        for name, x in (("inputs", embedding), ("state", above)))
    update = nn.sigmoid(update + update_)
    new = jnp.tanh(new + nn.sigmoid(reset + reset_) * new_)
    state = update * above + (1 - update) * new
    output = jnp.broadcast_to(output, (*state.shape[:2], output.shape[-1]))
    return nn.silu(linear(cfg.emb_dim, name="hidden")(
        jnp.concatenate([output, state], axis=-1))), state


def _linear(config, features, **kwargs):
  return layers.Linear(features, False, jnp.dtype(config.layers.dtype),
                       config.layers.weights, **kwargs)


def init_states(config, batch: int, nodes: int):
  """Returns the states of a GRU before any token; None without a GRU."""
  return jnp.zeros((batch, nodes, config.gru_hidden_dim), jnp.dtype(
      config.layers.dtype)) if config.gru_hidden_dim else None


def after(spec, params, target_params, slot: Slots, tokens, level, others=None):
  """Returns logits of a slot after each of `tokens [B, W]` and their paths,
  `[B, W or 1, N]`, and `[B, W, G]` states. `others [B, 1, N]` are logits of
  what DFlash 2 does not draft; -inf if None."""
  config = spec.config
  if config.selector_rank:
    return _selected(config, params, slot, tokens, others), None
  if config.gru_hidden_dim:
    hidden, state = _Recurrence(config).apply(
        {"params": params["recurrence"]}, slot.outputs,
        target_ends.embed(spec.target, target_params, tokens), slot.states)
    bias = linear_ops.matmul(hidden, params["recurrence_out"])
    return slot.logits + jnp.where(
        level >= config.pure_draft_prefix_len, bias, 0), state
  if config.markov_rank:
    return slot.logits + linear_ops.matmul(linear_ops.lookup(
        params["markov_in"], tokens), params["markov_out"]), None
  return slot.logits, None


def _selected(config, params, slot, tokens, others):
  values, candidates = kernels.top_k(
      slot.logits, min(config.selector_top_k, slot.logits.shape[-1]))
  gate = _linear(config, config.selector_rank).apply(
      {"params": params["gate"]}, slot.outputs)
  before = linear_ops.lookup(params["predecessors"], tokens) * gate
  rows = linear_ops.lookup(params["successors"], candidates)  # [B, 1, K, r]
  scores = values + (before[:, :, None].astype(jnp.float32) * rows).sum(-1)
  others = jnp.full_like(slot.logits, -jnp.inf) if others is None else others
  return jnp.put_along_axis(
      jnp.broadcast_to(others, (*tokens.shape, others.shape[-1])),
      jnp.broadcast_to(candidates, scores.shape), scores, axis=-1,
      inplace=False)


def init(key, config, vocab_size: int, drafted: int):
  """Returns random parameters. DFlash 2's begin without an effect."""
  cfg = config.layers
  dtype, params = jnp.dtype(cfg.dtype), {}
  keys = iter(jax.random.split(key, 4))
  x = jax.ShapeDtypeStruct((1, 1, cfg.dim), dtype)

  def table(rows, rank, init=layers.INIT):
    return quantization.initializer(init, cfg.weights)(
        next(keys), (rows, rank), dtype)

  if config.markov_rank:
    params = {"markov_in": table(vocab_size, config.markov_rank),
              "markov_out": table(drafted, config.markov_rank)}
  if config.gru_hidden_dim:
    above = jax.ShapeDtypeStruct((1, 1, config.gru_hidden_dim), dtype)
    params = {"recurrence": _Recurrence(config).lazy_init(
        next(keys), x, x, above)["params"],
              "recurrence_out": table(drafted, config.emb_dim)}
  if config.selector_rank:
    rank = config.selector_rank
    params = {"predecessors": table(vocab_size, rank),
              "successors": table(drafted, rank, nn.initializers.zeros),
              "gate": _linear(config, rank).lazy_init(next(keys), x)["params"]}
  return params
