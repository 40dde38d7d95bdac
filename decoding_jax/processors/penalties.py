"""Processors of tokens that a text has already, and of its length."""

import functools
import numbers
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from decoding_jax import bits, options
from decoding_jax.types import LogitsProcessor


@functools.lru_cache(maxsize=None)
def repetition_penalty(penalty: float, vocab_size: int) -> LogitsProcessor:
  """Makes tokens of prompt and text less probable (arXiv 1909.05858, sec. 4.1).

  Positive logits of such tokens are divided by the penalty, others multiplied.

  Args:
    penalty: positive; 1 changes nothing, less than 1 makes them more probable.
    vocab_size: V.

  Returns:
    A processor without parameters, `()`.

  Raises:
    ValueError: for a penalty or a vocabulary that is not positive.
  """
  if not isinstance(penalty, numbers.Real) or not 0 < penalty < float("inf"):
    raise ValueError(f"penalty={penalty!r}: a positive number is needed.")
  options.check_positive("vocab_size", vocab_size)
  words = bits.num_words(vocab_size)

  def advance(params, seen, token):
    del params
    bit = jnp.uint32(1) << (token % bits.SIZE).astype(jnp.uint32)
    return seen | jnp.where(jnp.arange(words) == token // bits.SIZE, bit,
                            jnp.uint32(0))

  def process(params, seen, logits):
    del params
    if len(logits) != vocab_size:
      raise ValueError(f"vocab_size={vocab_size} of a repetition penalty: "
                       f"{len(logits)}, that of the model, is needed.")
    less = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(bits.unpack(seen, vocab_size), less, logits)

  return LogitsProcessor(init=lambda params: jnp.zeros(words, jnp.uint32),
                         advance=advance, process=process, reads_prompt=True)


def min_new_tokens(count: int,
                   eos_id: int | Sequence[int]) -> LogitsProcessor:
  """Forbids the end of a text before it has so many tokens.

  Args:
    count: tokens that stand before the end, at least.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    A processor without parameters, `()`.

  Raises:
    ValueError: for a count that is negative or no integer; for tokens that are
      none.
  """
  if not options.is_integer(count) or count < 0:
    raise ValueError(f"count={count!r}: 0 or a positive integer is needed.")
  ends = np.atleast_1d(options.array("eos_id", eos_id))
  if not np.issubdtype(ends.dtype, np.integer):
    raise ValueError(f"eos_id={eos_id!r}: a token that ends texts, or several "
                     "of these, are needed.")
  return _min_new_tokens(int(count), tuple(ends.ravel().tolist()))


@functools.lru_cache(maxsize=None)
def _min_new_tokens(count, eos_id):
  ends = np.array(eos_id)

  def process(params, number, logits):
    del params
    if ((ends < 0) | (ends >= len(logits))).any():
      raise ValueError(f"eos_id={eos_id} of min_new_tokens: 0 to "
                       f"{len(logits) - 1}, tokens of the model, are needed.")
    return jnp.where(number < count, logits.at[ends].set(-jnp.inf), logits)

  return LogitsProcessor(
      init=lambda params: jnp.int32(0),
      advance=lambda params, number, token: jnp.minimum(number + 1, count),
      process=process)
