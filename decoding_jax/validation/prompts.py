"""Checks of prompts."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.validation import values


def check(prompts, prompt_lengths, vocab_size, extra_ids=0, *, least=1,
          names=("prompts", "prompt_lengths")):
  """Raises ValueError for wrong shapes, types, lengths or token ids."""
  for name, x, ndim in zip(names, (prompts, prompt_lengths), (2, 1)):
    if x.ndim != ndim or not jnp.issubdtype(x.dtype, jnp.integer):
      raise ValueError(f"{name} has shape {x.shape} and type {x.dtype}: "
                       f"integers with {ndim} axes are needed.")
  batch, width = prompts.shape
  if prompt_lengths.shape != (batch,) or not batch or not width:
    raise ValueError(
        f"{names[0]} has shape {prompts.shape} and {names[1]} "
        f"{prompt_lengths.shape}: [B, P] and [B] are needed, neither empty.")
  lengths, tokens = _values(prompt_lengths), _values(prompts)
  if lengths is None or tokens is None:
    return
  wrong = (lengths < least) | (lengths > width)
  if wrong.any():
    row = int(np.argmax(wrong))
    raise ValueError(f"{names[1]}[{row}]={lengths[row]}: {least} to {width}, "
                     f"the width of {names[0]}, is needed.")
  known = vocab_size + extra_ids
  wrong = (np.arange(width) < lengths[:, None]) & (
      (tokens < 0) | (tokens >= known))
  if wrong.any():
    row, column = np.argwhere(wrong)[0]
    also = " with the extra_ids of all models" if extra_ids else ""
    raise ValueError(
        f"{names[0]}[{row}, {column}]={tokens[row, column]}: 0 to {known - 1}, "
        f"the target's vocabulary{also}, is needed.")


def check_room(text_lengths, lengths, room) -> int:
  """Returns the tokens of the longest text with `lengths [B]` more; ValueError
  if that is above `room`. 0 if unknown, or where no row has more."""
  if text_lengths.shape != lengths.shape:
    raise ValueError(f"lengths has shape {lengths.shape}: one for each of "
                     f"{len(text_lengths)} rows is needed.")
  texts, more = _values(text_lengths), _values(lengths)
  if texts is None or more is None:
    return 0
  ends = np.where(more > 0, texts + more, 0)
  row = int(np.argmax(ends))
  if ends[row] > room:
    raise ValueError(
        f"lengths[{row}]={more[row]}: after {texts[row]} tokens these are "
        f"{ends[row]}, and a run has room for {room}, the width of the prompts "
        "of dj.begin: pad these to the longest text.")
  return int(ends[row])


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
