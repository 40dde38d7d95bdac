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

from decoding_jax import token_text
from decoding_jax.grammars import (grammar_source, token_automaton,
                                   vocabulary_digest)
from decoding_jax.grammars.engines import host_engine
from decoding_jax.grammars.engines.host_engine import HostGrammar
from decoding_jax.grammars.json_schema import schema_check
from decoding_jax.kernels import bits
from decoding_jax.validation import values

_PACKAGE = "llguidance"
# Vocabularies that are kept, each with its trie.
_MAX_VOCABULARIES = 4
_TOKENIZERS: dict = {}
# Rules of a grammar of Lark, and of GBNF, whose rewriting takes the square.
MAX_RULES, MAX_GBNF_RULES = 10_000, 1000
# Parts of a mask's work, about 20,000 a millisecond: a run is not given up.
_MAX_ITEMS = 10**8
# Characters of a reason.
_SHOWN = 300
_OPTIONS = '{"no_forcing": true}'


def json_schema(schema, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of JSON texts of a schema.

  Args:
    schema: a dict, or a text of JSON.
    pieces: the bytes of V tokens, from `tokenizers.pieces`; b"" for those that
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
  return host_engine.grammar(
      name, engine, source_of_schema(schema_check.parse(name, schema)), pieces,
      eos_id)


def regex(pattern: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of a pattern of Rust's `regex`; as `json_schema`."""
  name = f"pattern={values.shortened(pattern)}"
  grammar_source.check_pattern(name, pattern, pieces)
  # In the language of Lark, with slashes escaped.
  matcher = host_engine.library(_PACKAGE).LLMatcher
  parsed = json.loads(matcher.grammar_from_regex(pattern))
  return host_engine.grammar(
      name, engine, parsed["grammars"][0]["lark_grammar"], pieces, eos_id)


def lark(grammar: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns a grammar of Lark's language; as `json_schema`.

  Args:
    grammar: rules, of which the first one is `start`; `llguidance` says which
      parts of Lark it knows. `<|tool|>` is a special token of this name, and
      `<[5]>` token 5.
    pieces: see `json_schema`.
    eos_id: see `json_schema`.
  """
  name = f"grammar={values.shortened(grammar)}"
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  grammar_source.check(name, grammar, MAX_RULES, gbnf=False)
  grammar_source.check_special(name, grammar, pieces, ends)
  return host_engine.grammar(name, engine, grammar, pieces, eos_id)


def gbnf(grammar: str, pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns a grammar of llama.cpp's GBNF, with a rule `root`; as `lark`. Each
  character is a lexeme, so that no text is lost to a longer one."""
  name = f"grammar={values.shortened(grammar)}"
  package = host_engine.library(_PACKAGE)
  grammar_source.check(name, grammar, MAX_GBNF_RULES, gbnf=True)
  try:
    # The package has a module and a function of this name.
    text = package.gbnf_to_lark.gbnf_to_lark(
        grammar_source.plain_characters(grammar, r"\x{:02x}"))
  except Exception as e:  # It raises plain ones, too, as for unknown rules.
    problem = "it ends too early." if isinstance(e, IndexError) else e
    raise ValueError(f"{name}: {problem}") from e
  text = grammar_source.by_characters(text)
  grammar_source.check(name, text, MAX_RULES, gbnf=False)
  return host_engine.grammar(name, engine, text, pieces, eos_id)


def engine(name: str, source: str, pieces: Sequence[bytes],
           ends: Sequence[int]) -> host_engine.Engine:
  """Returns an engine of a grammar of Lark; ValueError if it is refused."""
  package = host_engine.library(_PACKAGE)
  tokenizer = vocabulary_digest.cached(
      _TOKENIZERS, _MAX_VOCABULARIES, _tokenizer, pieces, ends)
  first = host_engine.with_deep_stack(lambda: package.LLMatcher(
      tokenizer, _with_options(source), log_level=0,
      limits=package.LLParserLimits(step_max_items=_MAX_ITEMS)))
  try:
    _check(first)
  except ValueError as e:
    raise ValueError(f"{name}: {e}") from e
  return host_engine.Engine(
      start=first.deep_copy, consume=_consume,
      # Not rollback: masks after it were another text's.
      copy=lambda matcher: matcher.deep_copy(),
      mask=functools.partial(_mask, bits.num_words(len(pieces)), ends[0]))


def source_of_schema(schema) -> str:
  """Returns the grammar of a schema, parsed from JSON, for `engine`."""
  return f"start: %json {json.dumps(schema)}"


def _with_options(source):
  """Returns a grammar whose masks have all tokens that may come next.
  Otherwise, where only one text can follow, the only token that is allowed is
  the first one of its usual spelling: not the distribution that is masked."""
  match = re.search(r"^%llguidance\s+(?={)", source, re.MULTILINE)
  if not match:
    # At the end: errors count lines.
    return f"{source}\n%llguidance {_OPTIONS}"
  try:
    options, end = json.JSONDecoder().raw_decode(source, match.end())
  except ValueError:
    return source  # The package says what is wrong with it.
  options = json.dumps(options | json.loads(_OPTIONS))
  return source[:match.end()] + options + source[end:]


class _Vocabulary:
  """The vocabulary in the form that `llguidance` asks for."""

  def __init__(self, pieces, ends):
    self.eos_token_id, self.bos_token_id = ends[0], None
    names = {token: name.encode()
             for name, token in token_text.special(pieces).items()}
    # The end tokens are no text, whatever their bytes; a name with a blank is
    # in no grammar.
    names |= {token: f"end {token}".encode() for token in ends}
    self.special_token_ids = list(names)
    self.tokens = [names.get(token, bytes(piece))
                   for token, piece in enumerate(pieces)]
    self.is_tokenizer_wrapper = True

  def __call__(self, text):
    """Fails: nothing is encoded where no text is forced."""
    raise NotImplementedError(f"llguidance asks for the tokens of {text!r}.")


def _tokenizer(pieces, ends):
  """Returns the trie of a vocabulary."""
  return host_engine.library(_PACKAGE).LLTokenizer(
      _Vocabulary(pieces, ends), n_vocab=len(pieces), eos_token=ends[0])


def _consume(matcher, token):
  if not matcher.consume_token(token):
    _check(matcher)


def _mask(words, end, matcher):
  mask = np.frombuffer(matcher.compute_bitmask(), np.uint32)[:words]
  _check(matcher)
  word, bit = end // bits.SIZE, np.uint32(1 << end % bits.SIZE)
  if mask[word] & bit and not matcher.is_accepting():
    # Numbers of tokens, such as <[*]>, may have it.
    mask = mask.copy()
    mask[word] &= ~bit
  return mask


def _check(matcher):
  if matcher.is_error():
    # What follows is the source, a dump of its state, or of the engine's stack.
    reason = re.split(r"\n(?:<state>|<backtrace>| +\d+ \| )",
                      matcher.get_error())[0]
    reason = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ",
                    " ".join(re.sub(r"\n[ ^]*$", "", reason,
                                    flags=re.MULTILINE).split()))
    raise ValueError(f"llguidance: {values.shortened_text(reason, _SHOWN)}")
