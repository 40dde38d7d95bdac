"""Automata of regular expressions and JSON schemas, by `outlines_core`."""

import json
from collections.abc import Sequence

from decoding_jax.processors import regex_automaton, schema_regex
from decoding_jax.processors.token_automaton import Automaton


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> Automaton:
  """Texts that match a regular expression from end to end.

  Args:
    pattern: as of Rust's `regex`, without ^ and $, look-around and back
      references.
    pieces: the bytes of V tokens, as of `tokenizers.pieces`; b"" for
      those that must not occur.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton. A text of which more may come may end, or go on.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a pattern that is none, or that no text of the vocabulary
      matches.
  """
  name = f"pattern={pattern!r}"
  regex_automaton.check_anchors(name, pattern)
  return regex_automaton.automaton(name, pattern, pieces, eos_id)


def json_schema(schema, pieces: Sequence[bytes], eos_id,
                whitespace: str | None = None) -> Automaton:
  """JSON texts of a schema; no other ones, though not all of them.

  Of objects with `properties` there are those with no other property, in the
  order of the schema, and a schema that refers to itself ends after a few
  levels.

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
    ValueError: for a schema that is none, or that has a keyword which is not
      supported, see `schema_regex.plain`.
  """
  outlines_core = regex_automaton.library()
  try:
    # A dict too: so that all that follows sees what JSON has, and that alone.
    given = json.loads(schema if isinstance(schema, str) else
                       json.dumps(schema))
    text = json.dumps(schema_regex.plain(given))
    pattern = outlines_core.json_schema.build_regex_from_schema(text,
                                                                whitespace)
  except schema_regex.Unsupported:
    raise
  except (TypeError, ValueError) as e:
    raise ValueError(f"schema={schema}: {e}") from e
  return regex_automaton.automaton(f"schema={schema}", pattern, pieces, eos_id)
