"""Regular expressions as automata over tokens, by `outlines_core`."""

import re
from collections.abc import Sequence

from decoding_jax.processors import regex_size, regex_syntax, token_automaton
from decoding_jax.processors.token_automaton import Automaton
from decoding_jax.validation import values

# Around each text, and in no token. An index of `outlines_core` lacks
# transitions after states in which a text may end, so texts must end after this
# byte alone. Its compiler also builds the automaton that finds a pattern
# anywhere in a text, with a state for each set of places where it may have
# begun: 2**n of them for `"(x|y")*"` of n characters. So patterns must begin
# after this byte alone, and not match it.
_EDGE = b"\0"
_BYTES = 256


def library():
  """Returns `outlines_core`; ImportError says how to install it."""
  try:
    import outlines_core  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ImportError("regular expressions and JSON schemas need the package "
                      "outlines-core: pip install 'decoding_jax[grammar]' or "
                      "pip install outlines-core.") from e
  return outlines_core


def automaton(name: str, pattern: str, pieces: Sequence[bytes],
              eos_id) -> Automaton:
  """Returns the automaton of a pattern.

  Args:
    name: what errors begin with.
    pattern: as of `patterns.regex`.
    pieces: as of `patterns.regex`.
    eos_id: as of `patterns.regex`.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a pattern that is wrong, too large, or that no text of the
      vocabulary matches.
  """
  outlines_core = library()
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  values.utf8(name, pattern)
  # The compiler cannot be interrupted, and knows no limits.
  regex_size.check(name, pattern, pieces)
  edge = len(pieces)
  tokens = {_EDGE: [edge]}
  for token, piece in enumerate(pieces):
    if piece and _EDGE not in piece and token not in ends:
      tokens.setdefault(piece, []).append(token)
  try:
    index = outlines_core.Index(
        rf"\x00(?:{regex_syntax.without_nul(pattern)})\x00",
        outlines_core.Vocabulary(ends[0], tokens))
  except ValueError as e:
    raise ValueError(f"{name}: {_reason(pattern, e)}") from e
  transitions, finals = index.get_transitions(), index.get_final_states()
  begin = transitions.pop(index.get_initial_state()).get(edge)
  may_end = [state for state, arcs in transitions.items()
             if arcs.pop(edge, None) in finals]
  try:
    return token_automaton.from_transitions(transitions, begin, may_end,
                                            len(pieces), ends)
  except ValueError as e:
    raise ValueError(f"{name}: {e}") from e


def check_anchors(name: str, pattern: str):
  """Raises ValueError, beginning with a name, for a pattern with ^ or $."""
  # They would silently forbid the texts around them.
  if {"^", "$"} & {token.text for token in regex_syntax.tokens(pattern)}:
    raise ValueError(f"{name}: it is matched from end to end, so that ^ and $ "
                     r"are not needed; write \^ and \$ for the characters.")


def _reason(pattern, error):
  """Returns why there is no automaton; `outlines_core` says little of syntax.
  """
  if "NFA" not in str(error):
    return error
  texts = [token.text for token in regex_syntax.tokens(pattern)]
  if any(re.fullmatch(r"\(\?<?[=!]|\(\?P=|\\[1-9k]", text) for text in texts):
    return "look-around and back references are not supported."
  try:
    regex_syntax.as_python(pattern)
  except (re.error, RecursionError) as e:
    return f"{e}."
  return f"it is no regular expression of Rust's `regex`: {error}."
