"""Grammars that `llguidance` follows: JSON schemas, Lark, GBNF, patterns.

    grammar = dj.processors.llguidance_engine.lark(text, pieces, eos_id)
    target, target_params = dj.processors.apply(
        dj.processors.host_grammar(), grammar, target, target_params)
"""

import functools
import json
import re
from collections.abc import Sequence

import numpy as np

from decoding_jax.kernels import bits
from decoding_jax.processors import (host_engine, schema_check,
                                     token_automaton, vocabulary_digest)
from decoding_jax.processors.host_engine import HostGrammar
from decoding_jax.validation import values

# Vocabularies that are kept, each with its trie.
_MAX_VOCABULARIES = 4
_TOKENIZERS: dict = {}
_OPTIONS = '{"no_forcing": true}'


def library():
  """Returns `llguidance`; ImportError says how to install it."""
  try:
    import llguidance  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ImportError("grammars on the host need the package llguidance: pip "
                      "install 'decoding_jax[llguidance]' or pip install "
                      "llguidance.") from e
  return llguidance


def json_schema(schema, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of JSON texts of a schema.

  Args:
    schema: a dict, or a text of JSON.
    pieces: the bytes of V tokens, as of `tokenizers.pieces`; b"" for those that
      must not occur.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The parameters of `host_grammar()`.

  Raises:
    ImportError: without `llguidance`.
    schema_check.Malformed: a ValueError, for a keyword whose value is wrong.
    ValueError: for what `llguidance` refuses, with its reason.
  """
  name = f"schema={values.shortened(schema)}"
  return _grammar(name, source_of_schema(schema_check.parse(name, schema)),
                  pieces, eos_id)


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of a pattern of Rust's `regex`; as `json_schema`."""
  # In the language of Lark, with slashes escaped.
  found = json.loads(library().LLMatcher.grammar_from_regex(pattern))
  return _grammar(f"pattern={values.shortened(pattern)}",
                  found["grammars"][0]["lark_grammar"], pieces, eos_id)


def lark(grammar: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns a grammar of Lark's language; as `json_schema`.

  Args:
    grammar: rules, of which the first one is `start`; `llguidance` says which
      parts of Lark it knows.
    pieces: as of `json_schema`.
    eos_id: as of `json_schema`.
  """
  return _grammar(f"grammar={values.shortened(grammar)}", grammar, pieces,
                  eos_id)


def gbnf(grammar: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns a grammar of llama.cpp's GBNF, with a rule `root`; as `lark`.

  Rules that refer to no others become lexemes, which are read greedily: a
  narrower language than GBNF's, see docs/grammars.md.
  """
  name = f"grammar={values.shortened(grammar)}"
  package = library()
  try:
    # The package has a module and a function of this name.
    text = package.gbnf_to_lark.gbnf_to_lark(grammar)
  except Exception as e:  # It raises plain ones, too, as for unknown rules.
    problem = "it ends too early." if isinstance(e, IndexError) else e
    raise ValueError(f"{name}: {problem}") from e
  return _grammar(name, text, pieces, eos_id)


def engine(name: str, source: str, pieces: Sequence[bytes],
           ends: Sequence[int]) -> host_engine.Engine:
  """Returns an engine that follows texts of a grammar.

  Args:
    name: what errors begin with.
    source: in the language of Lark.
    pieces: the bytes of V tokens.
    ends: tokens that end a text.

  Raises:
    ValueError: for a grammar that is refused, with the reason.
  """
  first = library().LLMatcher(_tokenizer(pieces, tuple(ends)),
                              _with_options(source), log_level=0)
  try:
    _check(first)
  except ValueError as e:
    raise ValueError(f"{name}: {e}") from e
  return host_engine.Engine(
      start=first.deep_copy, consume=_consume,
      # Not rollback: masks after it were found to be those of other texts.
      copy=lambda matcher: matcher.deep_copy(),
      mask=functools.partial(_mask, bits.num_words(len(pieces))))


def source_of_schema(schema) -> str:
  """Returns the grammar of a schema, as of JSON, for `engine`."""
  return f"start: %json {json.dumps(schema)}"


def _with_options(source):
  """Returns a grammar whose masks have all tokens that may come next.

  Otherwise, where only one text can follow, the only token that is allowed is
  the first one of its usual spelling: not the distribution that is masked.
  """
  found = re.search(r"^%llguidance\s+(?={)", source, re.MULTILINE)
  if not found:
    return f"%llguidance {_OPTIONS}\n{source}"
  try:
    options, end = json.JSONDecoder().raw_decode(source, found.end())
  except ValueError:
    return source  # The package says what is wrong with it.
  options = json.dumps(options | json.loads(_OPTIONS))
  return source[:found.end()] + options + source[end:]


def _grammar(name, source, pieces, eos_id):
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  return host_engine.register(name, engine(name, source, pieces, ends), pieces,
                              ends)


class _Vocabulary:
  """The vocabulary in the form that `llguidance` asks for."""

  def __init__(self, pieces, ends):
    self.eos_token_id, self.bos_token_id = ends[0], None
    self.special_token_ids = list(ends)
    # The end tokens are no text, whatever their bytes.
    self.tokens = [b"" if token in ends else piece
                   for token, piece in enumerate(pieces)]
    self.is_tokenizer_wrapper = True

  def __call__(self, text):
    """Fails: nothing is encoded where no text is forced."""
    raise NotImplementedError(f"llguidance asks for the tokens of {text!r}.")


def _tokenizer(pieces, ends):
  """Returns the trie of a vocabulary, of the last few that were asked for."""
  key = vocabulary_digest.of_pieces(pieces), ends
  if key not in _TOKENIZERS:
    while len(_TOKENIZERS) >= _MAX_VOCABULARIES:
      del _TOKENIZERS[next(iter(_TOKENIZERS))]
    _TOKENIZERS[key] = library().LLTokenizer(
        _Vocabulary(pieces, ends), n_vocab=len(pieces), eos_token=ends[0])
  return _TOKENIZERS[key]


def _consume(matcher, token):
  if not matcher.consume_token(token):
    _check(matcher)


def _mask(words, matcher):
  mask = np.frombuffer(matcher.compute_bitmask(), np.uint32)[:words]
  _check(matcher)
  return mask


def _check(matcher):
  if matcher.is_error():
    # What follows is a dump of its state, or a trace of the engine's stack.
    reason = re.split(r"\n<(?:state|backtrace)>", matcher.get_error())[0]
    raise ValueError(f"llguidance: {reason.strip()}")
