"""Rewards that a decoder with few outputs for each token gives at the last one.

One output is the reward of the text (`config.preferences`). 2 E outputs are a
dual encoder (RankGen, arXiv 2205.09726, there T5; `config.suffix_length`): the
product of the prompt's first E and the continuation's last E is the reward.
Judged models must have the same tokens.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import language_models


@flax.struct.dataclass
class Text:
  """The state: the end of the text, of a dual encoder without its prompt."""
  tokens: types.Array  # `[S]` int32; arbitrary after the length
  length: types.Array  # `[]` int32, at most S
  # `[E]`, the vector of the prompt; None without a dual encoder
  prompt: types.Array | None = None


def check_capacity(lm: types.LanguageModel, capacity: int) -> None:
  """Raises ValueError for more tokens than a reward model reads."""
  if not 1 <= capacity <= (lm.max_length or capacity):
    raise ValueError(
        f"capacity={capacity}: 1 to {lm.max_length}, the length of the reward "
        "model, is needed.")


@functools.lru_cache(maxsize=None)
def reward(lm: types.LanguageModel, capacity: int,
           left_out: tuple[int, ...] | None = None,
           dual: bool = False) -> types.Reward:
  """Returns the reward that a model gives as its outputs at the last token.

  A value costs one forward over the whole buffer: nothing is cached, so that a
  state is small enough to have one for every candidate. A dual encoder reads
  the prompt once; the value of no continuation is 0.

  Args:
    lm: of a `transformer.Config` with `outputs=1`, or 2 E.
    capacity: S, how many of the last tokens are read; at most the model's
      length.
    left_out: tokens that are skipped, such as an end-of-text token that the
      reward model has never seen; None if all are read.
    dual: whether it is a dual encoder.
  """
  check_capacity(lm, capacity)

  def init(params, constraint, prompt, length):
    empty = Text(jnp.zeros(capacity, jnp.int32), jnp.int32(0))
    read = advance(params, constraint, empty, prompt,
                   jnp.arange(len(prompt)) < length)
    if not dual:
      return read
    outputs = at_end(params, read)
    return empty.replace(prompt=outputs[:len(outputs) // 2])

  def advance(params, constraint, state, tokens, valid):
    del params, constraint
    if left_out is not None:
      valid &= ~jnp.isin(tokens, jnp.asarray(left_out, jnp.int32))
    places = state.length + jnp.cumsum(valid) - 1
    wide = jnp.concatenate([state.tokens, jnp.zeros(len(tokens), jnp.int32)])
    wide = wide.at[jnp.where(valid, places, len(wide))].set(
        tokens.astype(jnp.int32), mode="drop")
    length = state.length + jnp.sum(valid, dtype=jnp.int32)
    kept = jnp.minimum(length, capacity)
    return state.replace(tokens=jax.lax.dynamic_slice_in_dim(
        wide, length - kept, capacity), length=kept)

  def at_end(params, state):
    outputs = language_models.causal_logits(lm, params, state.tokens[None])
    return outputs[0, state.length - 1].astype(jnp.float32)

  def value(params, constraint, state):
    del constraint
    outputs = at_end(params, state)
    if not dual:
      return outputs[0]
    return jnp.where(state.length > 0, state.prompt @ outputs[
        len(outputs) // 2:], 0)

  return types.Reward(init, advance, value)
