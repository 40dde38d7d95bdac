"""The least number of tokens that spell given words; on the host."""

import functools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

# Word bytes, as in `keyword_automaton`.
_WORD = rb"[0-9A-Za-z_\x80-\xff]"
_BEGINS = re.compile(rb"(?<!%s)" % _WORD)
_ENDS = re.compile(rb"(?!%s)" % _WORD)
_JOINS = re.compile(rb"%s.*(?!%s).+%s" % (_WORD, _WORD, _WORD), re.DOTALL)


class Parts(NamedTuple):
  """The byte strings that tokens of a vocabulary can contribute to a form."""
  # Those a form may begin with: ends of tokens, from a boundary on.
  begin: frozenset[bytes]
  inner: frozenset[bytes]  # those inside of a form: whole tokens
  # Those a form may end with: beginnings of tokens, up to a boundary.
  end: frozenset[bytes]
  whole: frozenset[bytes]  # forms that are inside of one token
  joined: bool  # whether one token can have bytes of two words


@functools.lru_cache(maxsize=4)
def parts(pieces: tuple[bytes, ...], fold_case: bool) -> Parts:
  """Returns the `Parts` of a vocabulary, in lower case if case is folded."""
  inner = frozenset(p.lower() if fold_case else p for p in pieces if p)
  begin, end, whole, joined = set(), set(), set(), False
  for piece in inner:
    starts = [match.start() for match in _BEGINS.finditer(piece)]
    stops = [match.start() for match in _ENDS.finditer(piece)]
    begin.update(piece[i:] for i in starts)
    end.update(piece[:j] for j in stops)
    whole.update(piece[i:j] for i in starts for j in stops)
    joined = joined or bool(_JOINS.search(piece))
  return Parts(frozenset(begin) - {b""}, inner, frozenset(end) - {b""},
               frozenset(whole), joined)


@functools.lru_cache(maxsize=1 << 16)
def fewest_tokens(vocabulary: Parts, form: bytes) -> float:
  """Returns the least number of tokens that spell a form; inf if none do."""
  if form in vocabulary.whole:
    return 1
  # counts[i]: tokens for the first i bytes, the last token ending there.
  counts = [math.inf]
  for stop in range(1, len(form)):
    counts.append(1 if form[:stop] in vocabulary.begin else 1 + min(
        (count for start, count in enumerate(counts)
         if form[start:stop] in vocabulary.inner), default=math.inf))
  return 1 + min((count for start, count in enumerate(counts)
                  if form[start:] in vocabulary.end), default=math.inf)


def fewest_tokens_of_all(vocabulary: Parts,
                         concepts: Iterable[list[bytes]]) -> float:
  """Returns a lower bound of the tokens that spell a form of each concept.

  Words cannot overlap, so their tokens add up. What may overlap or be shared
  (phrases, tokens of two words, forms of several concepts) counts once.
  """
  total, most, seen = 0, 0, set()
  for forms in concepts:
    count = min(fewest_tokens(vocabulary, form) for form in forms)
    most = max(most, count)
    if seen.isdisjoint(forms):
      seen.update(forms)
      total += count
  words = all(re.fullmatch(_WORD + rb"+", form) for form in seen)
  return total if words and not vocabulary.joined else most
