"""Automata of regular expressions and JSON schemas, by `outlines_core`."""

import json
from collections.abc import Sequence

from decoding_jax.processors import automata
from decoding_jax.processors.automata import Automaton

# Stands behind each text. An index of `outlines_core` lacks transitions behind
# states in which a text may end: so it shall end nowhere else.
_END = b"\0"


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> Automaton:
  """Texts that match a regular expression from end to end.

  Args:
    pattern: as of Rust's `regex`, without look-around and back references.
    pieces: the bytes of V tokens, as of `models.tokenizers.pieces`; b"" for
      those that must not occur.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton. A text of which more may come may end, or go on.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a pattern that is none, or that no text of the vocabulary
      matches.
  """
  outlines_core = _outlines_core()
  ends = automata.end_tokens(eos_id, len(pieces))
  over = len(pieces)
  tokens = {_END: [over]}
  for token, piece in enumerate(pieces):
    if piece and _END not in piece and token not in ends:
      tokens.setdefault(piece, []).append(token)
  try:
    index = outlines_core.Index(f"(?:{pattern})\\x00",
                                outlines_core.Vocabulary(ends[0], tokens))
  except ValueError as e:
    raise ValueError(f"pattern={pattern!r}: {e}") from e
  transitions, finals = index.get_transitions(), index.get_final_states()
  may_end = [state for state, arcs in transitions.items()
             if arcs.pop(over, None) in finals]
  return automata.from_transitions(
      transitions, index.get_initial_state(), may_end, len(pieces), ends)


def json_schema(schema, pieces: Sequence[bytes], eos_id,
                whitespace: str | None = None) -> Automaton:
  """JSON texts of a schema.

  Args:
    schema: a dict, or a text of JSON.
    pieces: as of `regex`.
    eos_id: as of `regex`.
    whitespace: what may stand between the parts, a regular expression; None for
      at most one blank.

  Returns:
    The automaton.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a schema that is none, or that is not supported.
  """
  outlines_core = _outlines_core()
  text = schema if isinstance(schema, str) else json.dumps(schema)
  try:
    pattern = outlines_core.json_schema.build_regex_from_schema(text,
                                                                whitespace)
  except (TypeError, ValueError) as e:
    raise ValueError(f"schema={text}: {e}") from e
  return regex(pattern, pieces, eos_id)


def _outlines_core():
  try:
    import outlines_core  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ImportError("regular expressions and JSON schemas need the package "
                      "outlines-core: pip install 'decoding_jax[grammar]' or "
                      "pip install outlines-core.") from e
  return outlines_core
