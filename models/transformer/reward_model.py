"""A reward model as a `types.Reward`: a decoder with one output for each token.

The output at the last token is the reward of the text. `experiments.train`
trains such a model with `config.preferences`; its tokens must be those of the
models it judges.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import language_models


@flax.struct.dataclass
class Text:
  """The state: the end of the text, prompt included.

  Attributes:
    tokens: `[S]` int32; arbitrary after the length.
    length: `[]` int32, at most S.
  """
  tokens: types.Array
  length: types.Array


def empty(capacity: int) -> Text:
  """Returns a text of no tokens, with room for so many."""
  return Text(jnp.zeros(capacity, jnp.int32), jnp.int32(0))


def append(text: Text, tokens, valid, left_out=None) -> Text:
  """Returns the end of a text `[S]` after more tokens.

  Args:
    text: the end of what came before.
    tokens: `[T]` int32.
    valid: `[T]` bool, which of them count.
    left_out: tokens that are skipped; None for none.
  """
  capacity = len(text.tokens)
  if left_out is not None:
    valid &= ~jnp.isin(tokens, jnp.asarray(left_out, jnp.int32))
  places = text.length + jnp.cumsum(valid) - 1
  wide = jnp.concatenate([text.tokens, jnp.zeros(len(tokens), jnp.int32)])
  wide = wide.at[jnp.where(valid, places, len(wide))].set(
      tokens.astype(jnp.int32), mode="drop")
  length = text.length + jnp.sum(valid, dtype=jnp.int32)
  kept = jnp.minimum(length, capacity)
  return Text(jax.lax.dynamic_slice_in_dim(wide, length - kept, capacity), kept)


@functools.lru_cache(maxsize=None)
def reward(lm: types.LanguageModel, capacity: int,
           left_out: tuple[int, ...] | None = None) -> types.Reward:
  """Returns the reward that a model gives as its output at the last token.

  A value costs one forward over the whole buffer: nothing is cached, so that a
  state is small enough to have one for every candidate.

  Args:
    lm: of a `transformer.Config` with `outputs=1`.
    capacity: S, how many of the last tokens are read; at most the model's
      length.
    left_out: tokens that are skipped, such as an end-of-text token that the
      reward model has never seen; None for none.

  Returns:
    A reward without constraints; its parameters are those of the model.
  """
  if not 1 <= capacity <= (lm.max_length or capacity):
    raise ValueError(
        f"capacity={capacity}: 1 to {lm.max_length}, the length of the reward "
        "model, is needed.")

  def init(params, constraint, prompt, length):
    return advance(params, constraint, empty(capacity), prompt,
                   jnp.arange(len(prompt)) < length)

  def advance(params, constraint, state, tokens, valid):
    del params, constraint
    return append(state, tokens, valid, left_out)

  def value(params, constraint, state):
    del constraint
    outputs = language_models.causal_logits(lm, params, state.tokens[None])
    return outputs[0, state.length - 1, 0].astype(jnp.float32)

  return types.Reward(init, advance, value)
