"""Penalties of repeated tokens, and a least length."""

import numbers
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.kernels import bits
from decoding_jax.types import NONE, LogitsProcessor
from decoding_jax.validation import values

# Tokens that a state may hold; each slot of a cache has room for as many.
MAX_WINDOW = 2**17
# A loop of more comparisons is not unrolled.
_MAX_UNROLLED = 16


@programs.memoized
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
  values.check_positive("vocab_size", vocab_size)
  words = bits.num_words(vocab_size)

  def advance(params, seen, token):
    del params
    bit = jnp.uint32(1) << (token % bits.SIZE).astype(jnp.uint32)
    return seen | jnp.where(jnp.arange(words) == token // bits.SIZE, bit,
                            jnp.uint32(0))

  def process(params, seen, logits):
    del params
    check_vocabulary(vocab_size, logits, "a repetition penalty")
    less = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(bits.unpack(seen, vocab_size), less, logits)

  return LogitsProcessor(init=lambda params: jnp.zeros(words, jnp.uint32),
                         advance=advance, process=process, reads_prompt=True)


@programs.memoized
def occurrence_penalty(presence: float, frequency: float, vocab_size: int,
                       window: int) -> LogitsProcessor:
  """Makes generated tokens less probable, as OpenAI's interface has it.

  From the logit of a token that was generated n > 0 times, presence + n *
  frequency is subtracted. The prompt does not count.

  Args:
    presence: any number; less than 0 makes such tokens more probable.
    frequency: the same, for each time.
    vocab_size: V.
    window: the last tokens that count, at most `MAX_WINDOW`; all of them, if it
      is no less than `max_new_tokens`. Each slot of a cache has room for as
      many.

  Returns:
    A processor without parameters, `()`.

  Raises:
    ValueError: for a penalty that is no number, or sizes that are not positive.
  """
  values.check_number("presence", presence)
  values.check_number("frequency", frequency)
  values.check_positive("vocab_size", vocab_size)
  check_window(window)

  def process(params, tokens, logits):
    del params
    check_vocabulary(vocab_size, logits, "an occurrence penalty")
    times = jnp.zeros(vocab_size).at[_places(tokens, vocab_size)].add(
        1, mode="drop")
    return logits - jnp.where(times > 0, presence + frequency * times, 0)

  return LogitsProcessor(init=lambda params: no_tokens(window),
                         advance=remember, process=process)


@programs.memoized
def no_repeat_ngram(size: int, vocab_size: int, window: int) -> LogitsProcessor:
  """Forbids tokens that would complete a sequence that occurred before.

  Sequences of the prompt, and those that begin in it, count.

  Args:
    size: tokens of a sequence; 1 forbids every token that occurred.
    vocab_size: V.
    window: last tokens within which sequences count, at most
      `MAX_WINDOW`; all of them, if it is no less than a prompt and
      `max_new_tokens` together. Each slot of a cache has room for as many.

  Returns:
    A processor without parameters, `()`.

  Raises:
    ValueError: for sizes that are not positive, or a window that no sequence
      fits in.
  """
  values.check_positives(size=size, vocab_size=vocab_size)
  check_window(window)
  if window < size:
    raise ValueError(f"window={window}: at least size={size} is needed.")
  sequences = window - size + 1

  def process(params, tokens, logits):
    del params
    check_vocabulary(vocab_size, logits, "no_repeat_ngram")
    # Sequences whose other tokens are the last ones of the text. A text shorter
    # than a sequence repeats none: its padding ends in no token.

    def compare(i, same):
      part = jax.lax.dynamic_slice_in_dim(tokens, i, sequences)
      return same & (part == tokens[sequences + i])

    same = jax.lax.fori_loop(0, size - 1, compare, jnp.ones(sequences, bool),
                             unroll=size <= _MAX_UNROLLED)
    ends = jnp.where(same, _places(tokens[size - 1:], vocab_size), vocab_size)
    return logits.at[ends].set(-jnp.inf, mode="drop")

  return LogitsProcessor(init=lambda params: no_tokens(window),
                         advance=remember, process=process, reads_prompt=True)


@programs.memoized
def min_new_tokens(count: int,
                   eos_id: int | Sequence[int]) -> LogitsProcessor:
  """Forbids the end of a text before it has a number of tokens.

  Args:
    count: the least number of tokens before the end.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    A processor without parameters, `()`.

  Raises:
    ValueError: for a count that is negative or no integer, and for tokens that
      are no integers.
  """
  if not values.is_integer(count) or count < 0:
    raise ValueError(f"count={count!r}: 0 or a positive integer is needed.")
  ends = np.atleast_1d(values.array("eos_id", eos_id))
  if not np.issubdtype(ends.dtype, np.integer):
    raise ValueError(f"eos_id={eos_id!r}: a token that ends texts, or several "
                     "of these, are needed.")

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


def check_window(window):
  """Raises ValueError unless a state may hold a window of tokens."""
  values.check_positive("window", window)
  if window > MAX_WINDOW:
    raise ValueError(f"window={window}: at most {MAX_WINDOW} tokens are "
                     "supported.")


def no_tokens(window):
  """Returns `[window]` int32, the last tokens of a text without any."""
  return jnp.full(window, NONE, jnp.int32)


def remember(params, tokens, token):
  """Returns the last tokens of a text, `NONE` before its first one."""
  del params
  return jnp.append(tokens[1:], token.astype(jnp.int32))


def _places(tokens, vocab_size):
  """Returns tokens as indices, V instead of `NONE`."""
  return jnp.where(tokens == NONE, vocab_size, tokens)


def check_vocabulary(vocab_size, logits, name):
  """Raises ValueError if a processor is for a model of another vocabulary."""
  if len(logits) != vocab_size:
    raise ValueError(f"vocab_size={vocab_size} of {name}: {len(logits)}, that "
                     "of the model, is needed.")
