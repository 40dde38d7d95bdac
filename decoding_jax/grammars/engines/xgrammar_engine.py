"""Grammars that `xgrammar` follows: JSON schemas, GBNF, patterns.

    grammar = dj.processors.xgrammar_engine.gbnf(text, pieces, eos_id)
    target, target_params = dj.processors.apply(
        dj.processors.host_grammar(), grammar, target, target_params)
"""

import functools
import json
import re
from collections.abc import Sequence

import numpy as np

from decoding_jax.grammars import grammar_source, vocabulary_digest
from decoding_jax.grammars.engines import host_engine
from decoding_jax.grammars.engines.host_engine import HostGrammar
from decoding_jax.grammars.json_schema import schema_check
from decoding_jax.kernels import bits
from decoding_jax.validation import values

_PACKAGE = "xgrammar"
# Vocabularies that are kept, each with its compiler.
_MAX_VOCABULARIES = 4
_COMPILERS: dict = {}
# Rules of a grammar, and values of enums, whose compilation takes the square.
MAX_RULES, MAX_VALUES = 10_000, 10_000


def json_schema(schema, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of JSON texts of a schema. Arguments and errors as in
  `llguidance_engine.json_schema`, but `xgrammar` ignores keywords that it does
  not know."""
  name = f"schema={values.shortened(schema)}"
  schema = schema_check.parse(name, schema)
  count = _num_values(schema)
  if count > MAX_VALUES:
    raise ValueError(f"{name}: {count} values of 'enum': at most {MAX_VALUES} "
                     "are supported by xgrammar; llguidance takes more.")
  return host_engine.grammar(name, engine, maker_of_schema(schema), pieces,
                             eos_id)


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of a pattern; as `json_schema`."""
  name = f"pattern={values.shortened(pattern)}"
  grammar_source.check_pattern(name, pattern, pieces)
  text = grammar_source.dots_without_newline(pattern)
  return host_engine.grammar(name, engine, lambda x: x.compile_regex(text),
                             pieces, eos_id)


def gbnf(grammar: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns a grammar of llama.cpp's GBNF, with a rule `root`."""
  name = f"grammar={values.shortened(grammar)}"
  grammar_source.check(name, grammar, MAX_RULES, gbnf=True)
  text = grammar_source.plain_characters(grammar, r"\u{:04x}")
  return host_engine.grammar(name, engine, lambda x: x.compile_grammar(text),
                             pieces, eos_id)


def _num_values(node) -> int:
  """Returns how many values the enums of a schema list."""
  if isinstance(node, dict):
    own = node.get("enum")
    return (len(own) if isinstance(own, list) else 0) + sum(
        map(_num_values, node.values()))
  return sum(map(_num_values, node)) if isinstance(node, list) else 0


def maker_of_schema(schema):
  """Returns what compiles a schema, parsed from JSON, for `engine`."""
  text = json.dumps(schema)
  # Not strict: what a schema does not name may be there, as in JSON Schema.
  return lambda x: x.compile_json_schema(text, strict_mode=False)


def engine(name: str, make, pieces: Sequence[bytes],
           ends: Sequence[int]) -> host_engine.Engine:
  """Returns an engine of what `make(compiler)` compiles, or ValueError."""
  package = host_engine.library(_PACKAGE)
  try:
    compiled = host_engine.with_deep_stack(
        lambda: make(vocabulary_digest.cached(
            _COMPILERS, _MAX_VOCABULARIES, _compiler, pieces, ends)))
  except (RuntimeError, ValueError) as e:
    # They begin with the time and a file of the package's source.
    reason = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(e))
    raise ValueError(f"{name}: xgrammar: {' '.join(reason.split())}") from e
  occurring = bits.pack(np.array([
      bool(piece) or token in ends for token, piece in enumerate(pieces)]))
  return host_engine.Engine(
      start=lambda: package.GrammarMatcher(compiled), consume=_consume,
      copy=lambda matcher: matcher.fork(),
      mask=functools.partial(_mask, occurring))


def _compiler(pieces, ends):
  """Returns the compiler of a vocabulary."""
  package = host_engine.library(_PACKAGE)
  return package.GrammarCompiler(package.TokenizerInfo(
      # The end tokens are no text, whatever their bytes.
      [b"" if token in ends else x for token, x in enumerate(pieces)],
      vocab_type=package.VocabType.RAW, vocab_size=len(pieces),
      stop_token_ids=list(ends)))


def _consume(matcher, token):
  if not matcher.accept_token(token):
    raise ValueError(f"xgrammar does not take token {token}, which it allowed.")


def _mask(occurring, matcher):
  """Returns the tokens that may come next, none of them special."""
  mask = np.zeros((1, len(occurring)), np.int32)
  # It leaves a mask that allows everything as it was.
  if not matcher.fill_next_token_bitmask(mask):
    return occurring
  return mask[0].view(np.uint32) & occurring
