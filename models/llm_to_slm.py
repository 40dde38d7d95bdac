"""LLM-to-SLM (arXiv 2402.16844): a small model that a large one reads for.

The large model reads a prompt once. A trained projector of two layers makes its
last hidden states vectors, which are added to the small model's embeddings of
the same tokens; then the small model writes alone. Its text has a distribution
of its own, not the large model's: it is a fast model, or a drafter.

    ids, own = llm_to_slm.read(large, large_params, params, prompts)
    dj.generate(..., prompts=ids, target_params=own,
                target=transformer.with_prompts(small, ids.size))

Vectors are tokens here: `ids` name rows of a table in `own`. The models share a
tokenizer. (The paper's need not, and the width of its projector is not known to
us: here it is the small model's.)
"""

import jax
import jax.numpy as jnp

from decoding_jax import types
from models import transformer
from models.transformer import layers
from models.transformer import linear_ops


def init(key, large: transformer.Config, small_params):
  """Returns parameters to begin with, with which the small model is as it was.

  `large` is the architecture of the large model, whose vocabulary is that of
  the small one. A dict of the small model's, `decoder`, and of the
  `projector`'s matrices `[out, in]`, of which the last is 0.
  """
  width = small_params["embedding"].shape[1]
  return {"decoder": small_params, "projector": {
      "in": layers.INIT(key, (width, large.embedding_dim or large.dim),
                        jnp.float32),
      "out": jnp.zeros((width, width))}}


def features(large: transformer.Config, large_params, tokens):
  """Returns what the large model says of texts `[B, T]`, in one forward.

  Its logits `[B, T, V]`, and its last hidden states `[B, T, F]` after the final
  norm.
  """
  model = transformer.with_features(large, (large.num_layers,))
  logits, block = transformer.causal_pass(model, large_params, tokens)
  return logits, block.features[types.HIDDEN_STATES][0]


def with_vectors(params, hidden, tokens):
  """Returns prompts of vectors, and the parameters that these are among.

  `params` are `init`'s, `hidden [B, P, F]` of the large model, `tokens
  [B, P]` int32 of the prompts. Returns ids `[B, P]` from V on; and parameters
  of the small model with its table.
  """
  decoder, projector = params["decoder"], params["projector"]
  inner = jax.nn.relu(linear_ops.matmul(hidden, projector["in"]))
  vectors = linear_ops.matmul(inner, projector["out"])
  vectors += linear_ops.lookup(decoder["embedding"], tokens)
  rows = jnp.arange(tokens.size, dtype=jnp.int32).reshape(tokens.shape)
  return decoder["embedding"].shape[0] + rows, {
      **decoder, "prompts": vectors.reshape(tokens.size, -1)}


def read(large: transformer.Config, large_params, params, prompts):
  """Returns `with_vectors` of prompts `[B, P]`; of padding any."""
  _, hidden = features(large, large_params, prompts)
  return with_vectors(params, hidden, prompts)
