"""Builds a table of probabilities into a Llama of one layer.

Any engine that runs Llamas then samples texts whose joint distribution is known
exactly. The embedding of a token is a channel of its own, and no layer writes
to the residual stream; the final norm makes that channel the root of the width,
and the head reads from it the logarithms of the token's row of the table.
"""

import jax
import jax.numpy as jnp
import numpy as np

from models import transformer
from models.huggingface import convert

# Tokens and channels of the model: sizes that kernels are written for. Tokens
# that the table lacks have this logit, as have its zeros.
SIZE = 64
_NEVER = -80.0
# Of an embedding: its mean square is far above the epsilon of the norm.
_LARGE = 16.0


def write(folder, table) -> None:
  """Writes the model of a table `[V, V]`, V <= `SIZE`, as transformers does."""
  config = transformer.Config(
      vocab_size=SIZE, max_length=2048, dim=SIZE, num_layers=1, num_heads=1,
      num_kv_heads=1, head_dim=SIZE, hidden_dim=SIZE, tie_embeddings=False,
      dtype="float32")
  with np.errstate(divide="ignore"):
    logs = np.maximum(np.log(table), _NEVER)
  head = np.full((SIZE, SIZE), _NEVER)
  head[:len(table), :len(table)] = logs.T
  given = {"embedding": _LARGE * np.eye(SIZE), "head": head / SIZE**0.5,
           "norm/scale": np.ones(SIZE)}

  def leaf(path, shape):
    x = given.get(transformer.param_name(path))
    return (jnp.zeros(shape.shape, jnp.float32) if x is None else
            jnp.asarray(x, jnp.float32).reshape(shape.shape))

  convert.to_hf(folder, config, jax.tree_util.tree_map_with_path(
      leaf, transformer.abstract_params(config)))
