"""A dual encoder of texts and their continuations, as a reward (RankGen).

RankGen (arXiv 2205.09726) scores a continuation by the product of two vectors,
that of the prefix and that of the continuation. Here both are outputs of one
decoder with `outputs` = 2 E, at the last token: the first E numbers are the
vector of a prefix, the others that of a continuation. (The paper's encoder is
T5's, which reads a tag of the side before the text.) `experiments.train` trains
it with `config.suffix_length`.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import language_models
from models.transformer import reward_model


@flax.struct.dataclass
class Pair:
  """The state: what a continuation is compared with, and the continuation.

  Attributes:
    prefix: `[E]`, the vector of the prompt.
    suffix: the end of the continuation.
  """
  prefix: types.Array
  suffix: reward_model.Text


def vectors(lm: types.LanguageModel, params, prefixes, suffixes):
  """Returns vectors of prefixes, and of continuations up to each token.

  Args:
    lm: of a `transformer.Config` with `outputs` = 2 E.
    params: its parameters.
    prefixes: `[N, P]` int32, whole ones.
    suffixes: `[N, S]` int32.

  Returns:
    `[N, E]` and `[N, S, E]` float32.
  """
  read = functools.partial(language_models.causal_logits, lm, params)
  before, after = (read(x).astype(jnp.float32) for x in (prefixes, suffixes))
  size = before.shape[-1] // 2
  return before[:, -1, :size], after[:, :, size:]


@functools.lru_cache(maxsize=None)
def reward(lm: types.LanguageModel, prefix_capacity: int, capacity: int,
           left_out: tuple[int, ...] | None = None) -> types.Reward:
  """Returns the product of the vectors of prompt and continuation; 0 of none.

  The prompt is read once. A value costs a forward over the continuation.

  Args:
    lm: of a `transformer.Config` with an even number of `outputs`.
    prefix_capacity: how many of the last tokens of the prompt are read.
    capacity: S, how many of the last tokens of the continuation are read.
    left_out: tokens that are skipped; None for none.

  Returns:
    A reward without constraints; its parameters are those of the model.

  Raises:
    ValueError: for a capacity that the model does not have.
  """
  for name, value in (("prefix_capacity", prefix_capacity),
                      ("capacity", capacity)):
    if not 1 <= value <= (lm.max_length or value):
      raise ValueError(f"{name}={value}: 1 to {lm.max_length}, the length of "
                       "the dual encoder, is needed.")

  def outputs(params, text):
    """Returns the outputs `[2, E]` at the end of a text."""
    found = language_models.causal_logits(lm, params, text.tokens[None])
    return found[0, jnp.maximum(text.length - 1, 0)].astype(
        jnp.float32).reshape(2, -1)

  def init(params, constraint, prompt, length):
    del constraint
    text = reward_model.append(reward_model.empty(prefix_capacity), prompt,
                               jnp.arange(len(prompt)) < length, left_out)
    return Pair(outputs(params, text)[0], reward_model.empty(capacity))

  def advance(params, constraint, state, tokens, valid):
    del params, constraint
    return state.replace(suffix=reward_model.append(state.suffix, tokens, valid,
                                                    left_out))

  def value(params, constraint, state):
    del constraint
    product = state.prefix @ outputs(params, state.suffix)[1]
    return jnp.where(state.suffix.length > 0, product, 0)

  return types.Reward(init, advance, value)
