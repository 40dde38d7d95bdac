"""Automata of processors against plain Python, and what they are made of."""

import json
import re

import numpy as np
import pytest

from decoding_jax import processors
from decoding_jax.token_text import SpecialToken
import decoding_jax as dj
from models.text import tokenizers
from support import helpers, tiny_models as tiny

# Tokens of one byte, of several, and two of the same bytes; 0 ends a text.
PIECES = [b"", b"a", b"b", b"c", b"ab", b"bc", b"cab", b"a", b"1", b"{", b"}",
          b'"', b":", b'"a"', b" ", b"\xc3", b"\xa9"]
EOS = 0


def walk(automaton, tokens):
  """State after tokens, -1 where one of them is not allowed."""
  state = 0
  for token in tokens:
    word = automaton.allowed[state][token // 32]
    following = automaton.following[state, automaton.classes[token]]
    assert bool(word >> (token % 32) & 1) == (following >= 0)
    if following < 0:
      return -1
    state = following
  return state


def texts(seed, count, longest):
  """Random texts of tokens, the end of a text not among them."""
  rng = np.random.default_rng(seed)
  for _ in range(count):
    yield rng.integers(1, len(PIECES), rng.integers(1, longest + 1)).tolist()


def test_a_table_is_what_it_was_made_of():
  rng = np.random.default_rng(0)
  following = rng.integers(-1, 3, (4, 70))
  following[:, 60:] = following[:, :10]
  automaton = processors.table(following)
  assert len(np.unique(following.T, axis=0)) == automaton.following.shape[1]
  np.testing.assert_array_equal(
      automaton.following[:, automaton.classes], following)
  for state in range(4):
    bits = [automaton.allowed[state, token // 32] >> (token % 32) & 1
            for token in range(70)]
    np.testing.assert_array_equal(bits, following[state] >= 0)


def test_states_without_an_end_are_left_out():
  """State 7 leads nowhere, and 9 only back to 5; token 2 ends a text."""
  automaton = processors.from_transitions(
      {5: {0: 7, 1: 9, 3: 4}, 9: {1: 9}, 4: {0: 4, 2: 4}}, 5, [4, 7], 4, 2)
  assert walk(automaton, [1]) == -1
  assert walk(automaton, [2]) == -1
  ended = walk(automaton, [3, 0, 2])
  assert ended > 0 and walk(automaton, [0, 2]) == ended
  assert walk(automaton, [3, 2, 2]) == ended
  assert [walk(automaton, [3, 2, token]) for token in (0, 1, 3)] == [-1] * 3


@pytest.mark.parametrize("words", [["abc"], ["bc", "aa", "cab1"], ["é"]])
def test_stop_strings(words):
  """Against searching in the bytes of the text."""
  automaton = processors.stop_strings(words, PIECES, EOS)
  stopped = 0
  for tokens in texts(len(words), 2000, 6):
    text = b"".join(PIECES[token] for token in tokens)
    before = b"".join(PIECES[token] for token in tokens[:-1])
    if any(word.encode() in before for word in words):
      continue
    result = any(word.encode() in text for word in words)
    stopped += result
    allowed = [walk(automaton, [*tokens, x]) >= 0 for x in range(len(PIECES))]
    assert allowed == [not result or x == EOS for x in range(len(PIECES))]
  assert stopped > 3


@pytest.mark.parametrize("word, ending", [
    ("<|e|>", [2]), ("b<|e|>", [1, 2]), ("<|e|>a<|u|>", [2, 0, 3]),
    ("<|e|>", [4, 5, 6, 5, 7])])
def test_stop_strings_that_name_special_tokens(word, ending):
  """They are met by the token, and spelled out; a last token is the end."""
  pieces = [b"a", b"b", SpecialToken("<|e|>"), SpecialToken("<|u|>"), b"<",
            b"|", b"e", b">", b""]
  automaton = processors.stop_strings(["aa", word], pieces, 8)
  for tokens in (ending, [0, 1, *ending], [3, 1, 1, *ending], [3, *ending]):
    for end in range(1, len(tokens)):
      assert walk(automaton, [*tokens[:end], 1]) >= 0
    assert [walk(automaton, [*tokens, x]) >= 0 for x in range(9)] == [
        False] * 8 + [True]
  # A special token that no string names adds nothing to the text.
  other = processors.stop_strings(["aa"], pieces, 8)
  assert walk(other, [0, 2, 0, 1]) == -1 and walk(other, [0, 2, 0, 8]) >= 0


@pytest.mark.parametrize("pattern", ["(ab|c)*1?", "[^a]+é?", "a{2,3}b.*",
                                     r"1+(\.1|ab)?"])
def test_regular_expressions(pattern):
  """What is allowed, and where a text may end, against `re`."""
  automaton = processors.regex(pattern, PIECES, EOS)
  ends = 0
  for tokens in texts(0, 2000, 5):
    text = b"".join(PIECES[token] for token in tokens).decode(errors="replace")
    matches = "\ufffd" not in text and bool(re.fullmatch(pattern, text))
    assert (walk(automaton, [*tokens, EOS]) >= 0) == matches
    ends += matches
  assert ends > 3


@pytest.fixture(name="pair", scope="module")
def _pair():
  return helpers.load_pair("python-target", "python-draft")


def complete(pair, automaton, new):
  """Completions of the shipped pair as texts, and which have ended."""
  pieces = pieces_of(pair)
  target, draft = (
      tiny.Model(*dj.processors.apply(processors.automaton(), automaton, *x))
      for x in ((pair.target, pair.target_params),
                (pair.draft, pair.draft_params)))
  rows = 8
  prompt = pair.tokenizer.encode("x = ").ids
  out = tiny.generate(
      dj.methods.rsd_s(2, 2), tiny.Models(target, draft),
      prompts=np.tile(np.int32(prompt), (rows, 1)),
      lengths=np.full(rows, len(prompt), np.int32), new=new,
      eos_id=pair.eos_id)
  result = tiny.texts(out, np.full(rows, len(prompt)))
  return [b"".join(pieces[token] for token in text) for text in result], [
      text[-1] in pair.eos_id for text in result]


def pieces_of(pair):
  return tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)


def test_json_of_a_schema(pair):
  """All texts that have ended are JSON, by the method of this library."""
  schema = {"type": "object", "required": ["name", "size"], "properties": {
      "name": {"enum": ["left", "right"]}, "size": {"type": "integer"}},
            "additionalProperties": False}
  automaton = processors.json_schema(schema, pieces_of(pair), pair.eos_id)
  result, ended = complete(pair, automaton, 32)
  assert sum(ended) >= 4
  for text, end in zip(result, ended):
    if end:
      value = json.loads(text)
      assert value["name"] in ("left", "right")
      assert isinstance(value["size"], int)


@pytest.mark.parametrize("make, given, message", [
    (processors.table, [[[0, 1], [-1, -1]]], r"following\[1\] allows no token"),
    (processors.table, [[[0, 1], [5, -1]]], "states from -1 to 5: -1 to 1 are"),
    (processors.table, [[0, 1]], r"shape \(2,\) and type int64: integ"),
    *((processors.stop_strings, [words, PIECES, eos_id], message)
      for words, eos_id, message in (
          ("ab", EOS, "strings='ab': a list of at least"),
          ([""], EOS, r"strings=\[''\]: a list"),
          (["a"], None, "eos_id=None: a token that ends texts"),
          (["a"], 17, "eos_id=17: a token .*, 0 to 16"))),
    *((make, [what, pieces, EOS], r"pieces .*\.pieces\(tokenizer\)")
      for make, what in ((processors.regex, "a"),
                         (processors.stop_strings, ["a"]),
                         (processors.json_schema, {"type": "null"}))
      for pieces in (object(), "abc", ["a"], None)),
    (processors.json_schema, ["nonsense", PIECES, EOS], "schema='nonsense': ")])
def test_errors_tell_what_is_needed(make, given, message):
  with pytest.raises(ValueError, match=message):
    make(*given)


@pytest.mark.parametrize("pattern, message", [
    ("(", r"missing \)"), ("xyz", "vocab"), ("^abc$", "end to end, so that"),
    ("a|b$", "end to end"), ("a(?=b)", "look-around and back references"),
    ("(?<!a)b", "look-around"), (r"(a)\1", "back references"),
    ("a{", r"nothing to repeat by \{; a character is written \\\{"),
    (")", "unbalanced"), ("a|(b", r"missing \)"), ("*", "nothing to repeat"),
    ("(*)", "nothing to repeat"), ("(?x) a", r"\(\?x\): the flags i and s are"),
    ("[a-z&&[^b]]", "classes within classes"), ("[[a]", "classes within"),
    (r"\p{Greek}", "general categories of Unicode are"),
    (r"\bA", "b is not supported")])
def test_errors_of_patterns_tell_what_is_wrong(pattern, message):
  with pytest.raises(ValueError,
                     match=f"pattern={re.escape(repr(pattern))}: .*{message}"):
    processors.regex(pattern, PIECES, EOS)


def test_anchors_that_are_none():
  pieces = [*PIECES, b"$", b"^"]
  for pattern in (r"\$\^", r"[$][$^]", r"[^a-z]{2}", r"[[:punct:]$]{2}"):
    automaton = processors.regex(pattern, pieces, EOS)
    assert walk(automaton, [len(pieces) - 2, len(pieces) - 1, EOS]) >= 0
