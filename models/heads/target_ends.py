"""Embedding, last norm and output layer of a target, which heads share."""

import jax.numpy as jnp

from decoding_jax import kernels
from models.transformer import layers
from models.transformer import linear_ops


def check(config) -> None:
  """Raises ValueError for a target whose ends heads do not know.

  Args:
    config: a `transformer.Config`.
  """
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


def norm(config, params, x):
  """Returns `[..., F]`, the target's residual stream after its last norm."""
  return layers.NORMS[config.norm](config, parent=None).apply(
      {"params": params["norm"]}, x)


def logits(config, params, x):
  """Returns the target's logits `[..., V]` float32 of normed `[..., F]`."""
  table = params["embedding" if config.tie_embeddings else "head"]
  return kernels.soft_cap(linear_ops.matmul(x, table) / config.logit_divisor,
                          config.logit_softcap)
