"""Automata over tokens of regular expressions, and of JSON schemas."""

from collections.abc import Sequence

from decoding_jax.grammars import (byte_automaton, grammar_source, regex as
                                   regex_lib, token_automaton, utf8)
from decoding_jax.grammars.finite_automata import TooLarge
from decoding_jax.grammars.json_schema import (schema_automaton, schema_check,
                                               schema_source)
from decoding_jax.grammars.token_automaton import Automaton
from decoding_jax.validation import values


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> Automaton:
  """Returns the automaton of texts that match a pattern from end to end.

  Args:
    pattern: see `regex_syntax.parse`, which is most of Rust's `regex`.
    pieces: the bytes of V tokens, from `tokenizers.pieces`; b"" for
      those that must not occur.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton. A text that matches and can be continued may end or go on.

  Raises:
    finite_automata.TooLarge: a ValueError, if it needs more than
      `token_automaton.MAX_STATES` states, `byte_automaton.MAX_TRANSITIONS`
      transitions, or is too long.
    ValueError: for a pattern that is wrong, or that no text of the vocabulary
      matches.
  """
  name = f"pattern={values.shortened(pattern)}"
  grammar_source.check_pattern(name, pattern, pieces)
  try:
    dfa = utf8.of_characters(regex_lib.whole(pattern))
  except ValueError as e:
    raise _renamed(e, f"{name}: {e}") from e
  return byte_automaton.of_dfa(name, dfa, pieces, eos_id)


def json_schema(schema, pieces: Sequence[bytes], eos_id,
                whitespace: str | None = None,
                seconds: float = float("inf")) -> Automaton:
  """Returns the automaton of JSON texts of a schema, though not of all of them.

  Properties come in the order of the schema, other names after them. Values of
  any type and schemas that refer to themselves end after a few levels. Limits:
  `token_automaton.MAX_STATES` and `MAX_BYTES`, and the ones in `schema_source`.

  Args:
    schema: a dict, or a text of JSON.
    pieces: see `regex`.
    eos_id: see `regex`.
    whitespace: what may be between the parts, a pattern; None for at most one
      blank.
    seconds: after which it is given up.

  Raises:
    finite_automata.TooLarge: a ValueError, if it needs more states or seconds.
    schema_check.Malformed: a ValueError, for a keyword whose value is wrong.
    ValueError: for what is no JSON, or a keyword that is not supported, see
      docs/grammars.md.
  """
  name = f"schema={values.shortened(schema)}"
  schema = schema_check.parse(name, schema)
  try:
    dfa = schema_automaton.of_schema(schema, whitespace,
                                     token_automaton.MAX_STATES, seconds)
  except schema_source.Unsupported:
    raise
  except RecursionError as e:
    raise ValueError(f"{name}: nested too deep: at most "
                     f"{schema_source.MAX_DEPTH} levels are supported.") from e
  except (TypeError, ValueError) as e:
    raise _renamed(e, f"{name}: {e}") from e
  return byte_automaton.of_dfa(name, dfa, pieces, eos_id)


def _renamed(error, text):
  """Returns an error with another text, of one of two types."""
  error_type = TooLarge if isinstance(error, TooLarge) else ValueError
  return error_type(text)
