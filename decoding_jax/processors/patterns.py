"""Automata of regular expressions and JSON schemas, by `outlines_core`."""

import json
from collections.abc import Sequence

from decoding_jax.processors import regex_automaton, schema_regex, schema_size
from decoding_jax.processors.token_automaton import Automaton
from decoding_jax.validation import values


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> Automaton:
  """Returns the automaton of texts that match a pattern from end to end.

  Its size is estimated before it is compiled: at most `regex_size.MAX_LENGTH`
  characters with repetitions written out, `token_automaton.MAX_STATES` states,
  and `token_automaton.MAX_BYTES` of memory.

  Args:
    pattern: as of Rust's `regex`, without ^ and $, look-around and back
      references.
    pieces: the bytes of V tokens, as of `tokenizers.pieces`; b"" for
      those that must not occur.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton. A text that matches and can be continued may end or go on.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a pattern that is wrong or too large, or that no text of the
      vocabulary matches.
  """
  name = f"pattern={values.shortened(pattern)}"
  if not isinstance(pattern, str):
    raise ValueError(f"{name}: a text is needed.")
  regex_automaton.check_anchors(name, pattern)
  return regex_automaton.automaton(name, pattern, pieces, eos_id)


def json_schema(schema, pieces: Sequence[bytes], eos_id,
                whitespace: str | None = None) -> Automaton:
  """Returns the automaton of JSON texts of a schema, though not of all of them.

  Of objects with `properties` there are those with no other property, in the
  order of the schema, and a schema that refers to itself ends after a few
  levels. The limits are those of `regex`, and those of `schema_size`.

  Args:
    schema: a dict, or a text of JSON.
    pieces: as of `regex`.
    eos_id: as of `regex`.
    whitespace: what may be between the parts, a regular expression; None for
      at most one blank.

  Returns:
    The automaton.

  Raises:
    ImportError: without `outlines_core`.
    ValueError: for a schema that is wrong or too large, or that has a keyword
      which is not supported, see `schema_regex.plain`.
  """
  outlines_core = regex_automaton.library()
  name = f"schema={values.shortened(schema)}"
  try:
    plain = schema_regex.plain(_as_json(schema))
    schema_size.check(name, plain, whitespace)
    pattern = outlines_core.json_schema.build_regex_from_schema(
        json.dumps(plain), whitespace)
  except schema_regex.Unsupported:
    raise
  except RecursionError as e:
    raise ValueError(f"{name}: nested too deep: at most {schema_size.MAX_DEPTH}"
                     " levels are supported.") from e
  except (TypeError, ValueError) as e:
    problem = str(e).removeprefix(f"{name}: ")
    raise ValueError(f"{name}: {problem}") from e
  return regex_automaton.automaton(name, pattern, pieces, eos_id)


def _as_json(schema):
  """Returns what a schema is in JSON; a dict may hold more than JSON has."""
  if not isinstance(schema, str):
    schema_size.check_depth(schema)
    schema = json.dumps(schema)
  found = json.loads(schema)
  schema_size.check_depth(found)
  return found
