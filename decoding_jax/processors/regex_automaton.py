"""Regular expressions as automata over tokens, by `outlines_core`."""

import re
from collections.abc import Sequence

import numpy as np

from decoding_jax.kernels import bits
from decoding_jax.processors import token_automaton
from decoding_jax.processors.token_automaton import Automaton

# Stands after each text. An index of `outlines_core` lacks transitions after
# states in which a text may end: so it shall end nowhere else.
_END = b"\0"
# What is no operator: a character after a backslash, a class of characters.
_PLAIN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[[^\]]*\]|[^\]\\])*\]", re.DOTALL)
_BYTES = 256


def library():
  """The module `outlines_core`; ImportError says how to install it."""
  try:
    import outlines_core  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ImportError("regular expressions and JSON schemas need the package "
                      "outlines-core: pip install 'decoding_jax[grammar]' or "
                      "pip install outlines-core.") from e
  return outlines_core


def automaton(name: str, pattern: str, pieces: Sequence[bytes],
              eos_id) -> Automaton:
  """As `patterns.regex`; errors of the pattern begin with a name."""
  outlines_core = library()
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  over = len(pieces)
  tokens = {_END: [over]}
  for token, piece in enumerate(pieces):
    if piece and _END not in piece and token not in ends:
      tokens.setdefault(piece, []).append(token)
  try:
    index = outlines_core.Index(f"(?:{pattern})\\x00",
                                outlines_core.Vocabulary(ends[0], tokens))
  except ValueError as e:
    raise ValueError(f"{name}: {_reason(pattern, e)}") from e
  transitions, finals = index.get_transitions(), index.get_final_states()
  may_end = [state for state, arcs in transitions.items()
             if arcs.pop(over, None) in finals]
  try:
    return token_automaton.from_transitions(
        transitions, index.get_initial_state(), may_end, len(pieces), ends)
  except ValueError as e:
    raise ValueError(f"{name}: {e}") from e


def check_anchors(name: str, pattern: str):
  """Raises ValueError, beginning with a name, for a pattern with ^ or $."""
  # Within a pattern they would forbid, without a word, the texts around them.
  if re.search(r"[$^]", _PLAIN.sub("", pattern)):
    raise ValueError(f"{name}: it is matched from end to end, so that ^ and $ "
                     r"are not needed; write \^ and \$ for the characters.")


def possible_bytes(name: str, pattern: str) -> np.ndarray:
  """Which bytes texts of a pattern may have, `[256]` bool."""
  pieces = [bytes([byte]) for byte in range(_BYTES)]
  found = automaton(name, pattern, [*pieces, b""], _BYTES)
  words = np.bitwise_or.reduce(found.allowed, axis=0)
  return np.asarray(bits.unpack(words, _BYTES + 1))[:_BYTES]


def _reason(pattern, error):
  """Why there is no automaton; `outlines_core` says little of syntax."""
  if "NFA" not in str(error):
    return error
  operators = _PLAIN.sub("", pattern)
  if (re.search(r"\(\?<?[=!]|\(\?P=", operators) or
      any(re.fullmatch(r"\\[1-9k]", plain) for plain in
          _PLAIN.findall(pattern))):
    return "look-around and back references are not supported."
  try:
    re.compile(pattern)
  except re.error as e:
    return f"{e}."
  return f"it is no regular expression of Rust's `regex`: {error}."
