"""Checks of prompts."""

import jax
import jax.numpy as jnp
import numpy as np


def check(prompts, prompt_lengths, vocab_size):
  """Checks shapes, types, lengths and token ids.

  Args:
    prompts: `[B, P]` int32.
    prompt_lengths: `[B]` int32.
    vocab_size: V.

  Raises:
    ValueError: naming the argument, its value and what is allowed.
  """
  for name, x, ndim in (("prompts", prompts, 2),
                        ("prompt_lengths", prompt_lengths, 1)):
    if x.ndim != ndim or not jnp.issubdtype(x.dtype, jnp.integer):
      raise ValueError(f"{name} has shape {x.shape} and type {x.dtype}: "
                       f"integers with {ndim} axes are needed.")
  batch, width = prompts.shape
  if prompt_lengths.shape != (batch,) or not batch or not width:
    raise ValueError(
        f"prompts has shape {prompts.shape} and prompt_lengths "
        f"{prompt_lengths.shape}: [B, P] and [B] are needed, neither empty.")
  lengths, tokens = _values(prompt_lengths), _values(prompts)
  if lengths is None or tokens is None:
    return
  wrong = (lengths < 1) | (lengths > width)
  if wrong.any():
    row = int(np.argmax(wrong))
    raise ValueError(f"prompt_lengths[{row}]={lengths[row]}: 1 to {width}, the "
                     "width of prompts, is needed.")
  wrong = (np.arange(width) < lengths[:, None]) & (
      (tokens < 0) | (tokens >= vocab_size))
  if wrong.any():
    row, column = np.argwhere(wrong)[0]
    raise ValueError(f"prompts[{row}, {column}]={tokens[row, column]}: 0 to "
                     f"{vocab_size - 1}, the target's vocabulary, is needed.")


def longest(prompts, prompt_lengths) -> int:
  """Returns the tokens of the longest prompt; P if lengths are unknown."""
  lengths = _values(prompt_lengths)
  return prompts.shape[1] if lengths is None else int(lengths.max())


def _values(x):
  """The array on the host; None if it is traced or not all here."""
  if isinstance(x, np.ndarray):
    return x
  if isinstance(x, jax.core.Tracer) or not x.is_fully_addressable:
    return None
  return np.asarray(x)
