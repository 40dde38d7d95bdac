"""Checks of numbers, arrays and texts, for arguments and options."""

from collections.abc import Iterable
import math
import numbers

import jax
import jax.numpy as jnp
import numpy as np


def form(x):
  """Returns shape and type of an array or a number, traced or not."""
  return jnp.shape(x), jnp.result_type(x)


def array(name, x):
  """Returns an argument as an array, else raises ValueError with its name. A
  `jax.Array` stays one; all else is an array of the host, since separate
  operations on a device take longer than one program."""
  on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))
  try:
    return jnp.asarray(x) if on_device else np.asarray(x)
  except (TypeError, ValueError) as e:
    raise ValueError(f"{name} is no array (rows of unequal lengths are padded "
                     f"on the right): {e}") from e


def integers(name, x) -> tuple[int, ...]:
  """Returns a sequence of integers as a tuple, else raises ValueError."""
  numbers = tuple(x) if isinstance(x, Iterable) else (None,)
  if not all(map(is_integer, numbers)):
    raise ValueError(f"{name}={x!r}: a tuple of integers is needed.")
  return numbers


def is_integer(x) -> bool:
  """Tells whether a value is an integer of Python or numpy, and no boolean."""
  return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def check_positive(name, *values):
  """Raises ValueError naming the argument unless all are positive integers."""
  for value in values:
    if not is_integer(value) or value < 1:
      raise ValueError(f"{name}={value!r}: a positive integer is needed.")


def check_positives(**sizes):
  """Raises ValueError naming the first size that is no positive integer."""
  for name, size in sizes.items():
    check_positive(name, size)


def check_number(name, value, low=-math.inf, high=math.inf):
  """Raises ValueError naming the option unless in a closed range."""
  if not (isinstance(value, numbers.Real) and math.isfinite(value) and
          low <= value <= high):
    raise ValueError(f"{name}={value!r}: a number from {low} to {high} is "
                     "needed.")


def check_one_of(name, value, choices):
  """Returns what an option stands for, a value of the dict `choices`."""
  if value not in choices:
    raise ValueError(f"{name}={value!r}: one of "
                     f"{', '.join(map(repr, choices))} is needed.")
  return choices[value]


def shortened(x, size: int = 80) -> str:
  """Returns the `repr` of a value, its middle left out if it is long."""
  try:
    text = repr(x)
  except RecursionError:
    return f"a {type(x).__name__} that is nested too deep to be shown"
  return shortened_text(text, size)


def shortened_text(text: str, size: int) -> str:
  """Returns a text, its middle left out if it is long."""
  half = size // 2
  return text if len(text) <= size else f"{text[:half]}...{text[-half:]}"


def utf8(name: str, text: str) -> bytes:
  """Returns the bytes of a text; ValueError for half of a surrogate pair."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError as e:
    raise ValueError(f"{name}: character {e.start} is {text[e.start]!r}, half "
                     "of a surrogate pair, which UTF-8 cannot encode: whole "
                     "characters are needed.") from e
