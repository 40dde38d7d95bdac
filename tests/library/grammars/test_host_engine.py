"""Grammars on the host: exact in trees, whatever engine follows the texts."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import processors, token_text
from decoding_jax.testing import exactness
import decoding_jax as dj
from decoding_jax.grammars.engines import host_engine
from decoding_jax.kernels import bits
from support import helpers, tiny_models as tiny
from support.example_methods import each
from support.search_reference import fit

PIECES = [b"", b"(", b")", b"()", b"((", b"x"]
EOS, V, LENGTH = 0, len(PIECES), 4
ROWS, CONTROL_ROWS = 20_000, 5_000
METHODS = [dj.methods.rsd_s(2, 2), dj.methods.rsd_c((2, 2)),
           dj.methods.speculative(2)]
LARK = 'start: "(" (start | "x")* ")"'
GBNF = 'root ::= "(" (root | "x")* ")"'


def depth_after(depth, token):
  """Open brackets after one more token; -1 if it is forbidden."""
  if token == EOS:
    return 0 if depth == 0 else -1
  for byte in PIECES[token]:
    if depth == 0:
      return -1
    depth = (1 if depth is None else depth + 1) if byte == ord("(") else (
        -1 if depth is None else depth - 1 if byte == ord(")") else depth)
    if depth < 0:
      return -1
  return depth


def allowed(depth):
  """Which tokens may come after so many open brackets; None: at the start."""
  return np.array([depth_after(depth, token) >= 0 for token in range(V)])


def counting_engine(copy=list):
  """An engine in plain Python; a matcher is the list of its depths."""
  return host_engine.Engine(
      start=lambda: [None],
      consume=lambda matcher, token: matcher.append(
          depth_after(matcher[-1], token)),
      copy=copy, mask=lambda matcher: bits.pack(allowed(matcher[-1])))


def counting(**kwargs):
  return host_engine.register("brackets", counting_engine(**kwargs), PIECES,
                              EOS)


def llguidance():
  pytest.importorskip("llguidance")
  return processors.llguidance_engine.lark(LARK, PIECES, EOS)


def llguidance_gbnf():
  pytest.importorskip("llguidance")
  return processors.llguidance_engine.gbnf(GBNF, PIECES, EOS)


def xgrammar():
  pytest.importorskip("xgrammar")
  return processors.xgrammar_engine.gbnf(GBNF, PIECES, EOS)


ENGINES = [counting, llguidance, llguidance_gbnf,
           pytest.param(xgrammar, marks=pytest.mark.long)]


def joint_distribution(table):
  """dict from each text that can follow token 0 to its probability."""
  probs = {}

  def extend(tokens, depth, chance):
    if len(tokens) == LENGTH or tokens[-1:] == (EOS,):
      probs[tokens] = chance
      return
    row = np.where(allowed(depth), table[tokens[-1] if tokens else 0], 0)
    for token in np.flatnonzero(row):
      extend((*tokens, int(token)), depth_after(depth, token),
             chance * row[token] / row.sum())

  extend((), None, 1.0)
  return probs


def models_of(grammar, draft=True):
  target, other = tiny.tables(*exactness.random_tables(V))
  apply = lambda model: tiny.Model(*dj.processors.apply(
      processors.host_grammar(), grammar, *model))
  return tiny.Models(apply(target), apply(other) if draft else other)


PROBS = joint_distribution(exactness.random_tables(V)[0])


def p_value(method, grammar, rows, draft=True):
  """How texts fit their distribution."""
  out = tiny.generate(method, models_of(grammar, draft),
                      prompts=np.zeros((rows, 1), np.int32),
                      lengths=np.ones(rows, np.int32), new=LENGTH, eos_id=EOS)
  return fit(jax.tree.map(np.asarray, out), PROBS)


@pytest.mark.cases(1)
@each(METHODS)
def test_joint_distribution_of_nested_brackets(method):
  assert len(PROBS) > 50
  assert p_value(method, counting(), ROWS) > exactness.MIN_P_VALUE


def test_joint_distribution_by_other_engines_and_a_free_drafter():
  """Programs are those of the engine in Python: another number is given."""
  for make in (llguidance, xgrammar):
    assert p_value(METHODS[0], make(), ROWS // 4) > exactness.MIN_P_VALUE
  assert p_value(METHODS[0], counting(), ROWS, False) > exactness.MIN_P_VALUE


def test_control_an_engine_whose_copies_are_itself_fails():
  grammar = counting(copy=lambda matcher: matcher)
  assert p_value(METHODS[0], grammar, CONTROL_ROWS) < (
      helpers.MAX_P_VALUE_OF_CONTROL)


@pytest.mark.parametrize("make", ENGINES, ids=lambda x: x.__name__)
def test_masks_of_all_engines_after_any_texts(make):
  """In an order in which matchers are copied, read on, and begin anew."""
  texts = host_engine._texts(make().number)
  rng = np.random.default_rng(0)
  results = {host_engine.START: None}
  for _ in range(60):
    text = list(results)[rng.integers(len(results))]
    np.testing.assert_array_equal(
        np.asarray(bits.unpack(jnp.asarray(host_engine._mask(texts, text)), V)),
        allowed(results[text]))
    for token in range(V):
      after = host_engine._after(texts, text, token)
      depth = depth_after(results[text], token)
      assert (after == host_engine.NONE) == (depth < 0)
      if depth >= 0 and token != EOS:
        results[after] = depth
      assert token != EOS or depth < 0 or after == host_engine.ENDED
  assert len(texts.matchers) > 20


def test_masks_have_all_spellings_of_a_text_that_is_forced():
  """And of JSON, where a number of an option is given by the grammar."""
  pytest.importorskip("llguidance")
  engine, pieces = processors.llguidance_engine, [b"", b"a", b"ab", b"b", b"1"]
  for grammar in (engine.regex("ab", pieces, EOS), engine.lark(
      '%llguidance {"allow_invalid_utf8": true}\nstart: "ab"', pieces, EOS)):
    texts = host_engine._texts(grammar.number)
    assert host_engine._mask(texts, host_engine.START)[0] == 0b110
  grammar = engine.json_schema({"const": 1}, pieces, EOS)
  assert host_engine._mask(host_engine._texts(grammar.number), 0)[0] == 1 << 4


def test_a_row_alone_in_a_batch_and_in_the_queue():
  """And of prompts of several tokens, which the grammar does not read."""
  models = models_of(counting())
  kwargs = dict(prompts=np.array([[5, 2, 0], [1, 1, 1], [3, 0, 0]], np.int32),
                lengths=np.array([3, 2, 1], np.int32), new=8, eos_id=EOS)
  whole = tiny.generate(METHODS[0], models, **kwargs)
  helpers.check_same(tiny.generate(METHODS[0], models, rows=2, **kwargs), whole)
  for text in tiny.texts(whole, kwargs["lengths"]):
    depth = None
    for token in text:
      depth = depth_after(depth, token)
      assert depth >= 0


def test_each_forward_calls_the_host_twice(monkeypatch):
  calls = []
  monkeypatch.setattr(host_engine, "_mask", lambda texts, text: (
      calls.append(text), np.uint32([2**V - 1]))[1])
  grammar = counting()
  before = jnp.zeros((3, 5), jnp.int32)
  tokens = jnp.tile(jnp.int32([1, 1, 2, 2, host_engine.NONE]), (3, 1))
  new = processors.host_grammar().advance_block(
      grammar, before, tokens, jnp.tile(jnp.int32([-1, 0, 0, 1, -1]), (3, 1)))
  assert host_engine.host_times(grammar).calls == 1
  np.testing.assert_array_equal(new, np.tile([2, 3, 4, 5, 0], (3, 1)))


def test_tokens_mapped_over_any_number_of_axes():
  grammar, tokens = counting(), jnp.int32([1, 2, 5, 4] * 6)
  advance = lambda token: processors.host_grammar().advance(
      grammar, jnp.int32(host_engine.START), token)
  expected = np.array([advance(token) for token in tokens[:4]])
  np.testing.assert_array_equal(expected >= 0, [1, 0, 0, 1])
  for shape in ((24,), (6, 4), (3, 2, 4)):
    mapped = advance
    for _ in shape:
      mapped = jax.vmap(mapped)
    np.testing.assert_array_equal(
        mapped(tokens.reshape(shape)), np.tile(expected, 6).reshape(shape))


def test_texts_that_are_not_used_are_forgotten(monkeypatch):
  monkeypatch.setattr(host_engine, "MAX_TEXTS", 50)
  monkeypatch.setattr(host_engine, "_RECENT_CALLS", 10)
  grammar = counting()
  texts, text = host_engine._texts(grammar.number), host_engine.START
  for step in range(200):
    [text] = host_engine._host_advance(grammar.number, np.int32([text]),
                                       np.int32([[1, 5][step % 2]]),
                                       np.int32([host_engine.NONE])).ravel()
    other = host_engine._host_advance(grammar.number, np.int32([text]),
                                      np.int32([4]),
                                      np.int32([host_engine.NONE])).ravel()
    host_engine._host_masks(grammar.number, np.int32([text, *other]))
  # All beginnings of the text, and what hangs from the last of them.
  assert 200 <= len(texts.last) < 230
  with pytest.raises(ValueError, match="text 3 of a grammar has been forg"):
    texts.masks.clear()
    host_engine._mask(texts, 3)


def test_errors_tell_what_is_needed(monkeypatch):
  pytest.importorskip("llguidance")
  guidance, grammar = processors.llguidance_engine, processors.host_grammar()
  for message, call, *arguments in (
      ("type tuple: a HostGrammar, as", grammar.init, ()),
      ("over 6 tokens: one over the model's 9", grammar.process, counting(),
       jnp.int32(0), jnp.zeros(9)),
      ("^grammar='start: .*Expected token", guidance.lark, "start: (", PIECES,
       EOS),
      *((f"^grammar=.*: {problem}", guidance.gbnf, text, PIECES, EOS)
        for text, problem in (("root ::= a", "Rule 'a' not found"),
                              ("# none", "No 'root' rule found"),
                              ('root ::= "\\', "it ends too early"))),
      ("^pattern='z': no text can begin", guidance.regex, "z", PIECES, EOS),
      ("^schema={'contains.*: .*Unimplemented", guidance.json_schema,
       {"contains": {}}, PIECES, EOS)):
    with pytest.raises(ValueError, match=message):
      call(*arguments)
  monkeypatch.setattr(host_engine, "MAX_GRAMMARS", 1)
  old, _ = counting(), counting()
  with pytest.raises(ValueError, match="not in use .* any more: at most 1 are"):
    host_engine._texts(old.number)


BYTES = [b"", *(bytes([x]) for x in range(256)),
         *map(token_text.SpecialToken, ("<|tool|>", "<think>", "</s>")), b""]
TOOL, THINK, END, PADDING = range(257, 261)
ENDS = (EOS, END)


def masks_along(grammar, tokens):
  """Which tokens may come at the start and after each of some tokens."""
  texts, text = host_engine._texts(grammar.number), host_engine.START
  results = [host_engine._mask(texts, text)]
  for token in tokens:
    text = host_engine._after(texts, text, token)
    results.append(host_engine._mask(texts, text))
  return np.stack([bits.unpack(x, len(BYTES)) for x in results])


def tokens_of(text):
  return [byte + 1 for byte in text.encode()]


@pytest.mark.parametrize("grammar, text", [
    ('root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\n'
     'term ::= num | "(" ws expr ")" ws\nnum ::= [0-9]+ ws\nws ::= [ \\n]*',
     "(1 +23)*4= 5\n\n6=7\n"),
    ('root ::= (expr "=" term "\\n")+\nexpr ::= term ([-+*/] term)*\n'
     'term ::= num | "(" expr ")"\nnum ::= [0-9]+', "(1+23)*4=5\n6=7\n"),
    ('root ::= one "c" | "abc" "d" # of "two\none ::= "ab"', "abc"),
    (r'root ::= "\x41b\u00e9" [\u0041-\u0043\x0a]+ "\x5c\x22"',
     'Abé\nAB\\"')])
def test_gbnf_is_one_language_by_both_engines(grammar, text):
  """Also where a text ends in what a longer lexeme would take."""
  pytest.importorskip("llguidance"), pytest.importorskip("xgrammar")
  one, other = (masks_along(make(grammar, BYTES, ENDS), tokens_of(text))
                for make in (processors.llguidance_engine.gbnf,
                             processors.xgrammar_engine.gbnf))
  np.testing.assert_array_equal(one, other)
  assert one.any(axis=1).all() and one[-1, list(ENDS)].all()


def test_a_dot_takes_no_newline_by_any_engine():
  pytest.importorskip("llguidance"), pytest.importorskip("xgrammar")
  for pattern in (".", r"a\.?.*", r"[^.]\\."):
    one, other = (masks_along(make(pattern, BYTES, ENDS), tokens_of("a\\b"))
                  for make in (processors.llguidance_engine.regex,
                               processors.xgrammar_engine.regex))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_a_long_chain_of_references_does_not_end_the_process(engine):
  pytest.importorskip(engine)
  size = {"llguidance": 2000, "xgrammar": 20_000}[engine]
  refs = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(size)}
  if engine == "llguidance":  # Of which it follows plain ones without a stack.
    refs = {name: {"properties": {"a": ref}} for name, ref in refs.items()}
  make = getattr(processors, f"{engine}_engine").json_schema
  make({"$ref": "#/$defs/0", "$defs": {**refs, str(size): {"const": "x"}}},
       BYTES, ENDS)


@pytest.mark.parametrize("grammar, tokens, following", [
    ("start: <|tool|> /[a-z]/ <think>", [TOOL, 98], [THINK]),
    (f"start: <[{TOOL}]> <[{TOOL}-{PADDING}]>", [TOOL], [TOOL, THINK]),
    ('start: "a" <[*]> "b" ', [98], [*range(1, 257), TOOL, THINK]),
    ('start: "a" <[^5]> "b" ', [98, TOOL], [99]),
    ("start: (<think> | <|tool|>)*", [THINK], [*ENDS, TOOL, THINK]),
    ('start: "<think>"', [], tokens_of("<"))])
def test_special_tokens_of_lark(grammar, tokens, following):
  pytest.importorskip("llguidance")
  masks = masks_along(processors.llguidance_engine.lark(grammar, BYTES, ENDS),
                      tokens)
  assert sorted(following) == np.flatnonzero(masks[-1]).tolist()


@pytest.mark.parametrize("make, text, message", [
    *((processors.llguidance_engine.lark, f"start: {x}", f"{x}: {problem}")
      for x, problem in (
          ("<user>", "the vocabulary has no such special token; it has <|tool"),
          ("</s>", "it ends texts: leave it out"),
          *((f"<[{x}]>", f"a token below {len(BYTES)} that occurs in texts") for
            x in (PADDING, EOS, len(BYTES), "0,259")))),
    (processors.llguidance_engine.lark, 'start: "a" b\nb: "b" x',
     'llguidance: line 2, column 4: unknown name: "x"'),
    (processors.xgrammar_engine.gbnf, 'root ::= "a" (',
     "xgrammar: EBNF parser error at line 1, column 15"),
    *((make, r"a<\|tool\|>", "<|tool|> is a special token, which no pattern")
      for make in (processors.regex, processors.llguidance_engine.regex,
                   processors.xgrammar_engine.regex)),
    (processors.llguidance_engine.lark, "start: r0\n" + "".join(
        f"r{i}: r{i + 1}\n" for i in range(10**4)), "10001 rules: at most 10"),
    *((make, "root ::= " + "|".join(f'"{i}"' for i in range(10**5)),
       "100001 names and literals: at most 20000")
      for make in (processors.llguidance_engine.gbnf,
                   processors.xgrammar_engine.gbnf)),
    (processors.llguidance_engine.gbnf, "root ::= " + "(" * 1000,
     "1000 levels of brackets: at most 100"),
    (processors.xgrammar_engine.json_schema,
     json.dumps({"items": {"enum": list(range(10_001))}}),
     "10001 values of 'enum': at most 10000"),
    (processors.llguidance_engine.lark, f'start: "{"a" * 2**20}"',
     "1048585 bytes: at most 1048576")], ids=lambda x: getattr(
         x, "__name__", str(x)[:30]))
def test_grammars_that_are_refused_by_one_line(make, text, message):
  if make.__module__ != processors.regex.__module__:
    pytest.importorskip(make.__module__.split(".")[-1].split("_")[0])
  with pytest.raises(ValueError) as error:
    make(text, BYTES, ENDS)
  reason = str(error.value)
  assert message in reason and "\n" not in reason and len(reason) < 400


@pytest.mark.parametrize("engine, package", [
    (processors.llguidance_engine, "llguidance"),
    (processors.xgrammar_engine, "xgrammar")], ids=["llguidance", "xgrammar"])
def test_without_the_package_the_error_names_the_extra(engine, package,
                                                       monkeypatch):
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(ImportError, match=rf"decoding_jax\[{package}\]"):
    engine.regex("a", PIECES, EOS)
