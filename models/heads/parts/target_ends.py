"""Embedding, last norm and output layer of a target, which heads share."""

import jax.numpy as jnp

from decoding_jax import kernels
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization


def check(config) -> None:
  """Raises ValueError for a target whose ends heads do not know."""
  if config.embedding_dim or config.outputs or config.post_norm:
    raise ValueError(
        f"target: embedding_dim={config.embedding_dim}, outputs="
        f"{config.outputs}, post_norm={config.post_norm}: heads need a target "
        "with a residual stream of the width of its embedding, a last norm and "
        "logits.")


def embed(config, params, tokens):
  """Returns the target's embeddings `[..., F]` of tokens `[...]`."""
  x = linear_ops.lookup(params["embedding"], tokens).astype(config.dtype)
  return x * jnp.asarray(config.embedding_scale, x.dtype)


def output_rows(config, params, tokens):
  """Returns the rows `[..., F]` of the target's output layer of tokens."""
  return linear_ops.lookup(_output_layer(config, params), tokens).astype(
      config.dtype)


def norm(config, params, x):
  """Returns `[..., F]`, the target's residual stream after its last norm."""
  return layers.NORMS[config.norm](config, parent=None).apply(
      {"params": params["norm"]}, x).astype(config.dtype)


def spread(config, logits_, tokens):
  """Returns `[..., V]` of logits `[..., N]` of `tokens [N]`; None for all.
  Others are -inf: they are never drafted."""
  if tokens is None:
    return logits_
  size = (*logits_.shape[:-1], config.vocab_size)
  return jnp.full(size, -jnp.inf).at[..., tokens].set(logits_)


def logits(config, params, x, table=None):
  """Returns float32 logits `[..., V]` of the normed residual stream `[..., F]`.
  With a table of `output_rows` they are of its tokens alone."""
  table = _output_layer(config, params) if table is None else table
  if not quantization.is_matrix(table):
    # A head may compute in fewer bits than the target.
    x = x.astype(jnp.promote_types(x.dtype, table.dtype))
  return kernels.soft_cap(linear_ops.matmul(x, table) / config.logit_divisor,
                          config.logit_softcap)


def _output_layer(config, params):
  return params["embedding" if config.tie_embeddings else "head"]
