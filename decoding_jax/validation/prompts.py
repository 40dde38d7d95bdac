"""Checks of prompts."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.validation import values


def check(prompts, prompt_lengths, vocab_size, extra_ids=0):
  """Raises ValueError for wrong shapes, types, lengths or token ids."""
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
  known = vocab_size + extra_ids
  wrong = (np.arange(width) < lengths[:, None]) & (
      (tokens < 0) | (tokens >= known))
  if wrong.any():
    row, column = np.argwhere(wrong)[0]
    also = " with the extra_ids of all models" if extra_ids else ""
    raise ValueError(f"prompts[{row}, {column}]={tokens[row, column]}: 0 to "
                     f"{known - 1}, the target's vocabulary{also}, is needed.")


def check_shared(shared_prefix, target, draft) -> int:
  """Returns how many tokens of `shared_prefix [L]` are stored once: L, or 0 if
  the target repeats them in each row. Raises ValueError for a wrong prefix."""
  shared_prefix = values.array("shared_prefix", shared_prefix)
  if shared_prefix.ndim != 1 or not shared_prefix.size or (
      not jnp.issubdtype(shared_prefix.dtype, jnp.integer)):
    raise ValueError(
        f"shared_prefix has shape {shared_prefix.shape} and type "
        f"{shared_prefix.dtype}: integers [L] are needed, at least one; or "
        "None.")
  tokens, size = _values(shared_prefix), target.vocab_size
  if tokens is not None and ((tokens < 0) | (tokens >= size)).any():
    raise ValueError(f"shared_prefix={tokens}: 0 to {size - 1}, "
                     "the target's vocabulary, is needed.")
  if not target.reads_shared:
    return 0
  if getattr(draft, "target_view", None):
    raise ValueError("shared_prefix: a draft model that reads the target's "
                     "cache needs prompts that begin with these tokens.")
  return shared_prefix.size


def after(shared_prefix, prompts, prompt_lengths):
  """Returns prompts and lengths with the same tokens before each prompt."""
  shared_prefix = values.array("shared_prefix", shared_prefix)
  # What is on the host stays there, as in `values.array`.
  on_host = all(isinstance(x, np.ndarray) for x in (shared_prefix, prompts))
  module = np if on_host else jnp
  first = module.broadcast_to(shared_prefix[None].astype(prompts.dtype),
                              (len(prompts), shared_prefix.size))
  return (module.concatenate([first, prompts], axis=1),
          prompt_lengths + shared_prefix.size)


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
