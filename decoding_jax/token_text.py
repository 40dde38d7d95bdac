"""Tokens as parts of a text: names of special ones, and what others add."""

from collections.abc import Callable, Sequence
import re

# Symbols up to here are bytes.
NUM_BYTES = 256


class SpecialToken(bytes):
  """The bytes that a special token adds to a text: none.

  A user who writes `<|eot_id|>` in a stop string or a choice nevertheless means
  that token.

  Attributes:
    name: how the token is written, such as "<|eot_id|>".
  """

  def __new__(cls, name: str):
    piece = super().__new__(cls)
    piece.name = name
    return piece


def special(pieces: Sequence[bytes]) -> dict[str, int]:
  """Returns the tokens that are special, by their names."""
  return {piece.name: token for token, piece in enumerate(pieces)
          if isinstance(piece, SpecialToken)}


def symbols(text: str, names: dict[str, int]) -> tuple[int, ...]:
  """Returns a text as bytes and special tokens, `NUM_BYTES` + t for token t. A
  name in `names`, of `special`, means that token; the longest name, where
  several begin at one character."""
  inside = sorted((x for x in names if x and x in text), key=len, reverse=True)
  if not inside:
    return tuple(text.encode())
  parts = re.split(f"({'|'.join(map(re.escape, inside))})", text)
  return tuple(symbol for i, part in enumerate(parts) for symbol in (
      [NUM_BYTES + names[part]] if i % 2 else part.encode()))


def context(decode: Callable[[list], str], tokens: Sequence[int]) -> list[int]:
  """Returns the last token with a text of its own, [] if there is none. Many
  tokenizers strip a blank at the beginning of a text. A completion is no
  beginning: decoded without this token it would lose its first blank."""
  for token in reversed(tokens):
    text = decode([token])
    # Not bytes of a character: with those that follow they are another one.
    if text.strip() and "\ufffd" not in text:
      return [token]
  return []


def added(decode: Callable[[list], str], before: list[int],
          tokens: Sequence[int]) -> str:
  """Returns the text that tokens add after `before`, of `context`."""
  if before:
    text, start = decode([*before, *tokens]), decode(before)
    if text.startswith(start):
      return text[len(start):]
  return decode(list(tokens))
