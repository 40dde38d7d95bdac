"""Strings of JSON as automata over bytes: UTF-8, escapes, lengths, formats."""

import functools
import json

from decoding_jax.grammars import finite_automata, regex, utf8
from decoding_jax.grammars.finite_automata import Dfa, Nfa

_QUOTE, _BACKSLASH = 34, 92
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    "|(?:[02468][048]|[13579][26])00)-02-29)")
_TIME = (r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
         "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])")
_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]{1,4}"
_ATEXT = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_PCHAR = "(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_AFTER = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_AUTHORITY = (r"(?:(?:[0-9A-Za-z._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
              r"(?:[0-9A-Za-z._~-])+(?::[0-9]{1,5})?")
_URI = (rf"[A-Za-z][0-9A-Za-z+.-]*:(?://{_AUTHORITY}(?:/{_PCHAR}*)*"
        rf"|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_PCHAR}+(?:/{_PCHAR}*)*){_AFTER}")
_RELATIVE = (rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
             rf"|(?:[0-9A-Za-z._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{{2}})+"
             rf"(?:/{_PCHAR}*)*)?{_AFTER}")
# In full, or with "::" for a run of zeros anywhere.
_IPV6 = "|".join([
    f"(?:{_HEX}:){{7}}{_HEX}", *(
        f"(?:{_HEX}(?::{_HEX}){{0,{n - 1}}})?::" if n == 7 else
        f"(?:{_HEX}(?::{_HEX}){{0,{n - 1}}})?::(?:{_HEX}:){{0,{6 - n}}}{_HEX}"
        if n else f"::(?:{_HEX}:){{0,6}}{_HEX}" for n in range(8))])
_DIGIT = "[0-9a-fA-F]"
# All escapes of JSON, but for halves of surrogate pairs.
_ESCAPES = (rf'\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF]{_DIGIT}|[dD][0-7])'
            rf"{_DIGIT}{{2}}|u[dD][89abAB]{_DIGIT}{{2}}"
            rf"\\u[dD][cdefCDEF]{_DIGIT}{{2}})")
# Some texts of each format, none that is of another form.
FORMATS = {
    "date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}",
    "duration": (r"P(?:[0-9]+W|(?:[0-9]+Y)(?:[0-9]+M(?:[0-9]+D)?)?"
                 r"|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"),
    "uuid": ("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "email": rf"{_ATEXT}(?:\.{_ATEXT})*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": _HOST, "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}", "ipv6": _IPV6,
    "uri": _URI, "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*"}
# Formats of JSON Schema that are not here; what is in no list is no format.
UNKNOWN_FORMATS = frozenset((
    "regex", "iri", "iri-reference", "uri-template", "idn-email",
    "idn-hostname", "relative-json-pointer"))


@functools.lru_cache(maxsize=64)
def of_format(name: str) -> Dfa:
  """Returns the automaton of the texts of a format, of those in `FORMATS`."""
  return regex.search(f"^(?:{FORMATS[name]})$")


@functools.lru_cache(maxsize=256)
def of_length(least: int, most: int | None) -> Dfa:
  """Returns the automaton of texts of `least` to `most` characters."""
  size = least if most is None else most
  if size > finite_automata.MAX_STATES:
    raise finite_automata.TooLarge(
        f"texts of {size} characters need as many states: at most "
        f"{finite_automata.MAX_STATES} are supported.")
  arc = lambda to: [(0, utf8.HIGHEST, to)]
  moves = [arc(state + 1) for state in range(size)]
  return Dfa([*moves, arc(size) if most is None else []],
             [state >= least for state in range(size + 1)])


def of_texts(texts) -> Dfa:
  """Returns the automaton of some texts."""
  nfa = Nfa()
  start, end = finite_automata.add_state(nfa), finite_automata.add_state(nfa)
  for text in texts:
    nfa.empty[finite_automata.add_text(nfa, start, map(ord, text))].append(end)
  return finite_automata.determinise(nfa, start, {end})


def without(x: Dfa | None, y: Dfa) -> Dfa:
  """Returns the texts of `x`, or of all for None, that are not of `y`."""
  rest = finite_automata.complement(y, utf8.HIGHEST)
  return rest if x is None else finite_automata.intersect(x, rest)


def has(x: Dfa | None, text: str) -> bool:
  """Returns whether an automaton over characters, None for all, has a text."""
  return x is None or finite_automata.accepts(x, map(ord, text))


def of_pattern(pattern: str) -> Dfa:
  """Returns the automaton of the texts that contain a match of a pattern."""
  return regex.search(pattern)


def of_constraints(x) -> Dfa | None:
  """Returns the automaton of a `schema_types.String`; None for all texts."""
  parts = [*map(of_pattern, x.patterns), *map(of_format, x.formats)]
  if x.least or x.most is not None:
    parts.append(of_length(x.least, x.most))
  dfa = parts[0] if parts else None
  for part in parts[1:]:
    dfa = finite_automata.intersect(dfa, part)
  for pattern in x.not_patterns:
    dfa = without(dfa, of_pattern(pattern))
  return without(dfa, of_texts(x.not_values)) if x.not_values else dfa


def add_string(nfa: Nfa, start: int, texts: Dfa | None) -> int:
  """Adds a string of JSON, quoted; `texts` None for all, in any spelling."""
  state = finite_automata.add_text(nfa, start, b'"')
  if texts is None:
    target = utf8.Target(nfa, state)
    _add_characters(target, state, 0, utf8.HIGHEST)
    nfa.empty[finite_automata.add_dfa(nfa, state, regex.search(
        f"^(?:{_ESCAPES})$"))].append(state)
    return finite_automata.add_text(nfa, state, b'"')
  end = finite_automata.add_state(nfa)
  states = [state, *(finite_automata.add_state(nfa) for _ in texts.moves[1:])]
  targets = [utf8.Target(nfa, x) for x in states]
  for here, row, final in zip(states, texts.moves, texts.finals):
    for low, high, to in row:
      _add_characters(targets[to], here, low, high)
    if final:
      nfa.moves[here].append((_QUOTE, _QUOTE, end))
  return end


def add_literal(nfa: Nfa, start: int, text: str) -> int:
  """Adds one string of JSON, spelled as `json.dumps` does."""
  # Halves of surrogate pairs have no bytes of their own.
  halves = any(utf8.SURROGATES[0] <= ord(x) <= utf8.SURROGATES[1] for x in text)
  return finite_automata.add_text(
      nfa, start, json.dumps(text, ensure_ascii=halves).encode())


def _add_characters(target, start, low, high):
  """Adds arcs for characters of a range, escaped where they have to be."""
  if low <= 0 and high >= 31:
    for ranges in (*_SHORT, *_CONTROLS):
      utf8.add_ranges(target, start, ranges)
  else:
    for number in range(max(low, 0), min(high, 31) + 1):
      utf8.add_ranges(target, start, tuple(
          map(_one, json.dumps(chr(number))[1:-1])))
  for number in (_QUOTE, _BACKSLASH):
    if low <= number <= high:
      utf8.add_ranges(target, start, ((_BACKSLASH,) * 2, (number,) * 2))
  for first, last in ((32, 33), (35, 91), (93, utf8.HIGHEST)):
    utf8.add_characters(target, start, max(low, first), min(high, last))


def _one(character):
  return (ord(character),) * 2


# All control characters, as json.dumps has them.
_SHORT = tuple((_one("\\"), _one(x)) for x in "bfnrt")
_CONTROLS = tuple(
    (*map(_one, "\\u00"), _one(first), (ord(low), ord(high)))
    for first, low, high in (("0", "0", "7"), ("0", "b", "b"), ("0", "e", "f"),
                             ("1", "0", "9"), ("1", "a", "f")))
