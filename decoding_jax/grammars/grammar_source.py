"""Texts of grammars, Lark or GBNF: their size, special tokens, characters.

Engines recur, and some of their own limits end the process, so large grammars
are refused first.
"""

import itertools
import re
import sys
from collections.abc import Sequence

from decoding_jax import token_text
from decoding_jax.grammars import token_automaton
from decoding_jax.validation import values

MAX_BYTES = 2**20
# Names and literals.
MAX_PARTS = 20_000
MAX_DEPTH = 100
_SHOWN = 8
# What has no structure: comments, strings, classes of GBNF, patterns of Lark.
_COMMENT = r"(?:#|//)[^\n]*"
_STRING = r'"(?:\\.|[^"\\])*"'
_GBNF = re.compile(rf"{_COMMENT}|{_STRING}|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_LARK = re.compile(rf"{_COMMENT}|{_STRING}|/(?:\\.|[^/\\\n])+/", re.DOTALL)
_RULE = re.compile(r'^[ \t]*[!?]?[\w.-]+[^:\n"]*:', re.MULTILINE)


def is_gbnf(text: str) -> bool:
  """Returns whether a grammar is of GBNF, by a rule such as `root ::= x`."""
  return bool(re.search(r"^[ \t]*[\w-]+[ \t]*::=", _code(text, gbnf=True),
                        re.MULTILINE))


def check(name: str, text: str, max_rules: int, gbnf: bool):
  """Raises ValueError, beginning with `name`, for too large a grammar."""
  size = len(values.utf8(name, text))
  code = _code(text, gbnf)
  depths = itertools.accumulate(
      1 if x in "([{" else -1 for x in re.findall(r"[(\[{)\]}]", code))
  for what, count, limit in (
      ("bytes", size, MAX_BYTES),
      ("rules", len(_RULE.findall(code)), max_rules),
      ("names and literals", len(re.findall(r'[\w-]+|"', code)), MAX_PARTS),
      ("levels of brackets", max(depths, default=0), MAX_DEPTH)):
    if count > limit:
      raise ValueError(f"{name}: {count} {what}: at most {limit} are "
                       "supported.")


def check_special(name: str, text: str, pieces: Sequence[bytes],
                  ends: Sequence[int]):
  """Checks special tokens of a Lark grammar: `<|tool|>`, `<[5]>`."""
  known = {x: token for x, token in token_text.special(pieces).items()
           if token not in ends}
  for given in re.findall(r"<[^<>\s]+>", _code(text, gbnf=False)):
    numbers = re.fullmatch(r"<\[([\d,-]+)\]>", given)
    if numbers:
      if not any(token not in ends and token < len(pieces) and (
          pieces[token] or token in known.values())
                 for token in _numbers(numbers[1], len(pieces))):
        raise ValueError(f"{name}: {given}: a token below {len(pieces)} that "
                         "occurs in texts and does not end them is needed.")
    elif given not in known and not given.startswith("<["):
      problem = ("it ends texts: leave it out, it comes after each of them"
                 if given in token_text.special(pieces) else
                 "the vocabulary has no such special token; it has "
                 f"{' '.join(list(known)[:_SHOWN]) or 'none'}"
                 f"{' ...' * (len(known) > _SHOWN)}")
      raise ValueError(f"{name}: {given}: {problem}.")


def check_pattern(name: str, pattern: str, pieces: Sequence[bytes]):
  """Raises ValueError for a special token in a pattern: it has no text."""
  if not isinstance(pattern, str):
    raise ValueError(f"{name}: a text is needed.")
  values.utf8(name, pattern)
  token_automaton.check_pieces(pieces)
  # Classes and what is no literal become a character that no name has.
  text = re.sub(r"\\(.)|\[\^?\]?(?:\\.|[^\]\\])*\]|[|()*+?{}.^$\[\]]",
                lambda x: x[1] or "\0", pattern, flags=re.DOTALL)
  for token in token_text.special(pieces):
    if token and token in text:
      first = f"\\{token[0]}" if token[0] in r"[]^\\" else token[0]
      raise ValueError(f"{name}: {token} is a special token, which no pattern "
                       "has: a Lark grammar takes it; as a text of other "
                       f"tokens, write its beginning as [{first}].")


def plain_characters(gbnf: str, escape: str) -> str:
  r"""Returns a grammar of GBNF with characters for their numbers: `\u00e9`.

  Engines differ in how many digits they read. `escape` is how the engine writes
  numbers that are kept, such as "\\u{:04x}".
  """
  def plain(match):
    digits = match[1] or match[2] or match[3]
    if not digits:
      return match[0]
    number = int(digits, 16)
    if number > sys.maxunicode or 0xd800 <= number < 0xe000:
      return match[0]  # The engine says that there is no such character.
    is_special = number < 32 or number == 127 or chr(number) in '"\\[]^-'
    return escape.format(number) if is_special else chr(number)

  digit = "[0-9a-fA-F]"
  escapes = rf"\\(?:x({digit}{{2}})|u({digit}{{4}})|U({digit}{{8}})|.)"
  return _GBNF.sub(
      lambda x: x[0] if x[0][0] in "#/" else re.sub(escapes, plain, x[0],
                                                    flags=re.DOTALL), gbnf)


def by_characters(lark: str) -> str:
  """Returns a grammar that was GBNF with a lexeme for each character. Lexemes
  are read greedily: longer ones would be another language. In `lark`, as
  `llguidance` makes it, lexemes are the rules without references, in
  capitals."""
  return re.sub(rf"{_LARK.pattern}|[A-Z][A-Z0-9_]*", _by_characters, lark,
                flags=re.DOTALL)


def _by_characters(match):
  text = match[0]
  if text == "/./":
    return "/(?s:.)/"
  if text[0] in "/#":
    return text
  if text[0] != '"':
    return text.lower()
  characters = re.findall(r"\\x..|\\.|.", text[1:-1], re.DOTALL)
  return text if len(characters) < 2 else (
      f"({' '.join(f'{chr(34)}{x}{chr(34)}' for x in characters)})")


def dots_without_newline(pattern: str) -> str:
  """Returns a pattern in which `.` takes no end of a line, for any engine."""
  return re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\.",
                lambda x: r"[^\n]" if x[0] == "." else x[0], pattern,
                flags=re.DOTALL)


def _code(text, gbnf):
  """Returns a grammar without comments, and with `"` for each literal."""
  return (_GBNF if gbnf else _LARK).sub(
      lambda x: "" if x[0][0] == "#" or x[0].startswith("//") else '"', text)


def _numbers(text, size):
  """Returns the numbers of "1,3-5", those below a size."""
  for part in filter(None, text.split(",")):
    low, _, high = part.partition("-")
    yield from range(int(low or 0), min(int(high or low or 0), size) + 1)
