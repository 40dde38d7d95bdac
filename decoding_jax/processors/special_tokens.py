"""Special tokens among the bytes of a vocabulary, and in texts that name them.

A special token adds nothing to a text. A user who writes `<|eot_id|>` in a stop
string or a choice nevertheless means that token.
"""

import re
from collections.abc import Sequence

from decoding_jax.validation import values

# Symbols up to here are bytes.
NUM_BYTES = 256


class SpecialToken(bytes):
  """The bytes that a special token adds to a text: none.

  Attributes:
    name: how the token is written, such as "<|eot_id|>".
  """

  def __new__(cls, name: str):
    piece = super().__new__(cls)
    piece.name = name
    return piece


def names(pieces: Sequence[bytes]) -> dict[str, int]:
  """Returns the tokens that are special, by their names."""
  return {piece.name: token for token, piece in enumerate(pieces)
          if isinstance(piece, SpecialToken)}


def symbols(what: str, text: str, special: dict[str, int]) -> tuple[int, ...]:
  """Returns a text as bytes and special tokens.

  Args:
    what: that errors begin with.
    text: in which a name of a special token means that token; the longest
      name, where several begin at one character.
    special: of `names`.

  Returns:
    Symbols: bytes, and `NUM_BYTES` + t for token t.
  """
  data = values.utf8(what, text)
  inside = sorted((x for x in special if x and x in text), key=len,
                  reverse=True)
  if not inside:
    return tuple(data)
  parts = re.split(f"({'|'.join(map(re.escape, inside))})", text)
  return tuple(symbol for i, part in enumerate(parts) for symbol in (
      [NUM_BYTES + special[part]] if i % 2 else part.encode()))
