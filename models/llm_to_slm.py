"""LLM-to-SLM (arXiv 2402.16844): a small model that a large one reads for.

The large model reads a prompt once. A trained projector of two layers makes its
last hidden states vectors, which are added to the small model's embeddings of
the same tokens; then the small model writes alone. Its text has a distribution
of its own, not the large model's: it is a fast model, or a drafter for any
method.

    ids, own = llm_to_slm.read(sizes, params, large_params, prompts)
    dj.generate(..., prompts=ids, target=llm_to_slm.language_model(sizes, ids),
                target_params=own)

Vectors are tokens here: `ids` name rows of a table in `own`, see
`transformer.with_prompts`. The models share a tokenizer. (The paper's need not:
then its vectors are put before the small model's prompt. It says too little of
its projector for us to know its width, which is the small model's here, and of
its training.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from models import transformer
from models.transformer import layers
from models.transformer import linear_ops


class Sizes(NamedTuple):
  """Attributes: architectures of both models, which share a vocabulary."""
  large: transformer.Config
  small: transformer.Config


def init(key, sizes: Sizes, small_params):
  """Returns parameters to begin with, with which the small model is as it was.

  Args:
    key: a random key.
    sizes: of both models.
    small_params: of the small model.

  Returns:
    Dict of the small model's, `decoder`, and of the `projector`, `[out, in]`
    matrices of which the last is 0.
  """
  width, dim = sizes.small.dim, sizes.large.embedding_dim or sizes.large.dim
  return {"decoder": small_params, "projector": {
      "in": {"kernel": layers.INIT(key, (width, dim), jnp.float32)},
      "out": {"kernel": jnp.zeros((sizes.small.embedding_dim or width, width))}
  }}


def features(sizes: Sizes, large_params, tokens):
  """Returns what the large model says of texts, in one forward.

  Args:
    sizes: of both models.
    large_params: of the large one.
    tokens: `[B, T]` int32.

  Returns:
    Its last hidden states `[B, T, F]`, after the final norm, and its logits
    `[B, T, V]`.
  """
  batch, length = tokens.shape
  model = transformer.with_features(sizes.large, (sizes.large.num_layers,))
  empty = model.init_cache(batch, 0)
  logits, block = model.forward(
      large_params, tokens, jnp.broadcast_to(jnp.arange(length), tokens.shape),
      empty, cache_lib.init_block(empty, length), 0, jnp.broadcast_to(
          jnp.tril(jnp.ones((length, length), bool)), (batch, length, length)))
  return block.features[types.HIDDEN_STATES][0], logits


def with_vectors(params, hidden, tokens):
  """Returns ids of prompts of vectors, and parameters with these.

  Args:
    params: of `init`.
    hidden: `[B, P, F]` of the large model.
    tokens: `[B, P]` int32 of the prompts.

  Returns:
    `[B, P]` int32, the numbers of rows of a table from V on; and the small
    model's parameters with this table.
  """
  decoder, projector = params["decoder"], params["projector"]
  inner = jax.nn.relu(linear_ops.matmul(hidden, projector["in"]["kernel"]))
  vectors = linear_ops.matmul(inner, projector["out"]["kernel"])
  vectors += linear_ops.lookup(decoder["embedding"], tokens)
  rows = jnp.arange(tokens.size, dtype=jnp.int32).reshape(tokens.shape)
  return decoder["embedding"].shape[0] + rows, {
      **decoder, "prompts": vectors.reshape(tokens.size, -1)}


def read(sizes: Sizes, params, large_params, prompts):
  """Returns `with_vectors` of prompts `[B, P]`; of padding any."""
  hidden, _ = features(sizes, large_params, prompts)
  return with_vectors(params, hidden, prompts)


def language_model(sizes: Sizes, ids) -> types.LanguageModel:
  """Returns the small model, to which these prompts `[B, P]` are known."""
  return transformer.with_prompts(sizes.small, ids.size)
