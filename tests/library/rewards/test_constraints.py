"""Rewards on device: words, phrases, length, sums."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import types
import decoding_jax as dj
from decoding_jax.kernels import bits
from decoding_jax.rewards import min_tokens

EOS = 256
# All bytes, an end of text, and pieces that words can be cut into.
PIECES = [bytes([i]) for i in range(256)] + [b""] + [x.encode() for x in (
    "cat", " cat", "ca", "t", "egory", "categ", "s", " s", ".", ",", " ", "  ",
    "\n", "_", "9", "C", "CAT", "At", "é", " é", "tché", "木", "深い", "木cat",
    "the ", "he t", "-", "ice", " cream", "e c", "\u201c", "e\u0301")]
PIECES += ["é".encode()[:1], "é".encode()[1:], "木".encode()[:2],
           "t木".encode()[:3]]
VOCABULARY = dj.constraints.vocabulary(PIECES)
WORD = rb"[0-9A-Za-z_\x80-\xff]"
CASES, ROWS, P, T = 10_000, 2_500, 4, 14


def search(form, prompt, text, flags=0):
  """The oracle: whether a regular expression finds the form in the text."""
  pattern = re.compile(
      b"(?<!%s)%s(?!%s)" % (WORD, re.escape(form), WORD), flags | re.DOTALL)
  # What stands before `pos` is seen, but no match begins there.
  return bool(pattern.search(prompt + text, pos=len(prompt)))


def joined(tokens):
  return b"".join(PIECES[token] for token in tokens)


def random_form(rng, text):
  """A form that is likely to be found, or nearly."""
  kind = rng.random()
  if kind < 0.3 and text:
    start = rng.integers(len(text))
    return text[start:start + rng.integers(1, 9)]
  if kind < 0.7 and re.search(WORD, text):
    return bytes(rng.choice(re.findall(WORD + rb"+", text)))
  return str(rng.choice(["cat", "ca", "category", "at", "é", "caté", "CAT",
                         "cat cat", "木", "ice cream", "cats", "."])).encode()


def random_case(rng):
  """Prompt, text and concepts."""
  places = np.concatenate([np.arange(257, len(PIECES)), [EOS, 32, 200]])
  tokens = rng.choice(places, P + T).astype(np.int32)
  text = joined(tokens[P:])
  concepts = [[random_form(rng, text) for _ in range(rng.integers(1, 4))]
              for _ in range(rng.integers(0, 4))]
  if concepts and rng.random() < 0.3:  # A form that begins another.
    concepts[0].append(concepts[0][0] + concepts[-1][-1])
  return tokens, concepts


@jax.jit
def _in_two_parts(params, constraint, tokens, lengths, cuts):
  """Coverage, and the states when tokens come at once or in two parts."""
  reward = dj.constraints.lexical()

  def row(constraint, tokens, length, cut):
    order = jnp.arange(T)
    first = reward.init(params, constraint, tokens[:P], length)
    whole, part = (
        reward.advance(params, constraint, first, tokens[P:], valid)
        for valid in (jnp.ones(T, bool), order < cut))
    rest = reward.advance(params, constraint, part, tokens[P:], order >= cut)
    return reward.value(params, constraint, whole), whole, rest

  return jax.vmap(row)(constraint, tokens, lengths, cuts)


@pytest.mark.cases(1)
@pytest.mark.parametrize("part", range(CASES // ROWS))
def test_a_regular_expression_finds_the_same(part):
  rng = np.random.default_rng(part)
  cases = [random_case(rng) for _ in range(ROWS)]
  tokens = np.stack([case[0] for case in cases])
  lengths = rng.integers(1, P + 1, ROWS).astype(np.int32)
  fold_case = bool(part % 2)
  # The same shapes in all parts: a row of 20 forms, and four concepts.
  rows = [concepts for _, concepts in cases]
  rows[0] = [[b"%04d" % (10 * i + j) for j in range(20)] for i in range(4)]
  constraint = dj.constraints.concepts(rows, PIECES, fold_case=fold_case)
  values, whole, rest = _in_two_parts(VOCABULARY, constraint, tokens, lengths,
                                      rng.integers(0, T + 1, ROWS))
  jax.tree.map(np.testing.assert_array_equal, whole, rest)
  flags = re.IGNORECASE if fold_case else 0
  results = [[any(search(form, joined(row[:length]), joined(row[P:]), flags)
                  for form in concept) for concept in concepts]
             for row, length, concepts in zip(tokens, lengths, rows)]
  np.testing.assert_allclose(values, [np.mean(x or [1]) for x in results],
                             rtol=1e-6)
  # Not in vain: many are found, many are not, many are parts of words only.
  assert 0.3 < np.mean(sum(results, [])) < 0.7
  inside = [[any(form in joined(row[P:]) for form in concept)
             for concept in concepts] for row, concepts in zip(tokens, rows)]
  assert np.mean(sum(inside, [])) > np.mean(sum(results, [])) + 0.1


def covered(text, concepts, prompt="x", **kwargs):
  """The coverage of a text, a byte a token."""
  texts = [list(x.encode()) for x in (prompt, text)]
  out = types.Generation(jnp.array([texts[0] + texts[1] + [types.PAD]]),
                         jnp.array([len(texts[0] + texts[1])]), None, None)
  return float(dj.constraints.evaluate(
      dj.constraints.lexical(), VOCABULARY,
      dj.constraints.concepts([concepts], PIECES, **kwargs), out,
      jnp.array([len(texts[0])]))[0])


@pytest.mark.parametrize("text, prompt, expected", [
    (" the cat sat", "x", 1), (" category ", "x", 0), (" a cat", "x", 1),
    (" catég", "x", 0), (" cat-s...", "x", 1), ("cat 1 2 3", "x", 0),
    ("cat 1 2 3", " ", 1), (" sat ....", "cat", 0), ("t sat it", "ca", 0),
    (" Cat. ...", "x", 0),
])
def test_where_a_word_counts(text, prompt, expected):
  assert covered(text, [["cat"]], prompt) == expected
  assert covered(text, [], prompt) == 1


def test_soft_and_hard_coverage():
  concepts = [["dog", "dogs"], ["catch", "caught"], ["ball"]]
  values = [covered(text, concepts) for text in (
      " ...............", " dogs and a ball", " dog caught ball")]
  np.testing.assert_allclose(values, [0, 2 / 3, 1], rtol=1e-6)
  assert list(dj.constraints.hard_coverage(np.array(values))) == [0, 0, 1]


def test_long_forms_cross_words_of_bits():
  form = "a" * 20 + " " + "b" * 60
  assert covered(f" {form}", [[form], ["a" * 20]]) == 1
  assert covered(f" {form}b", [[form], ["a" * 20]]) == 0.5


def test_states_are_small_and_branch():
  reward = dj.constraints.lexical()
  constraint = jax.tree.map(lambda x: x[0], dj.constraints.concepts(
      [[["cat"], ["cats", "category"]]], PIECES))
  stem, *branches = [[PIECES.index(piece.encode()) for piece in text]
                     for text in ([" cat"], ["s", " s"], ["egory", "."],
                                  ["egory", "s"], [".", "cat"])]
  run = jax.jit(lambda state, tokens: reward.advance(
      VOCABULARY, constraint, state, tokens, jnp.ones(len(tokens), bool)))
  state = reward.init(VOCABULARY, constraint, jnp.array([0]), 1)
  assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) <= 9
  state = run(state, jnp.array(stem))
  values = [float(reward.value(VOCABULARY, constraint,
                               run(state, jnp.array(branch))))
            for branch in branches]
  assert values == [0.5, 0.5, 0, 0.5]
  assert float(reward.value(VOCABULARY, constraint, state)) == 0.5


@pytest.mark.parametrize("rows, budget, message", [
    ([], None, "rows is empty"),
    ([[["a"]], [["b"], []]], None, "rows[1][1]=[]: a list of at least one"),
    ([["cat"]], None, "rows[0][0]='cat': a list of at least one form"),
    ([[["a", ""]]], None, "rows[0][0]=['a', ''] has an empty form"),
    ([[["a"]], [["b", "ab9"]]], None,
     "rows[1][0]: the vocabulary cannot spell the form 'ab9'"),
    ([[["a"], ["bbb", "b"], ["cc"]]], 3,
     "rows[0]: the forms ['a', 'b', 'cc'] take at least 4 tokens, "
     "max_new_tokens=3"),
])
def test_constraints_that_nothing_meets(rows, budget, message):
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    dj.constraints.concepts(rows, [b"a", b"b", b"c", b" a", b""], budget)
  assert "\n" not in str(error.value)


def test_a_budget_that_is_just_enough():
  pieces = [b"a", b"b", b"c", b" a", b""]
  dj.constraints.concepts([[["a"], ["bbb", "b"], ["cc"]]], pieces, 4)
  # Both are said at once: by words that are shared, phrases that overlap.
  dj.constraints.concepts([[["ab"], ["b", "ab"], ["ab"]]], pieces, 2)
  dj.constraints.concepts([[["a b"], ["b c"]]], [*pieces, b" "], 5)
  dj.constraints.concepts([[["a"], ["b"]]], [*pieces, b"a b"], 1)


@pytest.mark.parametrize("fold_case", [False, True])
def test_the_fewest_tokens_are_those_of_a_search(fold_case):
  pieces = (b"a", b"A", b"b a", b" b", b"ab ", b"", b"\xc3\xa9")
  vocabulary = min_tokens.parts(pieces, fold_case)
  texts = {}
  for size in (1, 2, 3):
    for tokens in itertools.product(pieces, repeat=size):
      texts.setdefault(b"".join(tokens), size)
  flags = re.IGNORECASE if fold_case else 0
  forms = {text[i:j] for text in texts for i, j in itertools.combinations(
      range(min(len(text), 5) + 1), 2)}
  assert len(forms) > 50
  for form in forms:
    results = [size for text, size in texts.items()
               if search(form, b"", text, flags)]
    count = min_tokens.fewest_tokens(
        vocabulary, form.lower() if fold_case else form)
    assert count == min(results, default=count) and count >= 1
    assert results or count > 3


def test_banned():
  reward = dj.constraints.banned(["cat", "ice cream"], fold_case=True)
  assert reward == dj.constraints.banned(("cat", "ice cream"), fold_case=True)
  texts = [" a category", " the CAT ..", " ice creams", " ice cream."]
  tokens = jnp.array([[32, *text.encode(), types.PAD] for text in texts])
  out = types.Generation(tokens, jnp.full(4, 12), None, None)
  values = dj.constraints.evaluate(reward, VOCABULARY, None, out, jnp.ones(4))
  assert list(values) == [1, 0, 1, 0]
  with pytest.raises(ValueError, match="has an empty form"):
    dj.constraints.banned([""])


def test_length():
  reward = dj.constraints.length(2, 4)
  assert reward == dj.constraints.length(2, 4)
  tokens = jnp.zeros((5, 10), jnp.int32)
  out = types.Generation(tokens, jnp.array([3, 4, 5, 7, 10]), None, None)
  values = dj.constraints.evaluate(reward, None, None, out, jnp.full(5, 2))
  np.testing.assert_allclose(values, [0.5, 1, 1, 0.8, 0.5])
  with pytest.raises(ValueError, match=r"length\(3, 2\): 0 <= minimum"):
    dj.constraints.length(3, 2)


def test_weighted_sum():
  lexical = dj.constraints.lexical()
  reward = dj.constraints.weighted_sum(
      [(2, lexical), (0.5, dj.constraints.length(0, 2))])
  assert reward == dj.constraints.weighted_sum(
      ((2.0, lexical), (0.5, dj.constraints.length(0, 2))))
  assert reward.maximum == 2.5
  assert dj.constraints.weighted_sum([(-1, lexical)]).maximum == math.inf
  constraint = dj.constraints.concepts([[["a"], ["b"]]] * 2, PIECES)
  tokens = jnp.array([[0, *b" a ."], [0, *b" b a"]])
  out = types.Generation(tokens, jnp.array([3, 5]), None, None)
  values = dj.constraints.evaluate(
      reward, (VOCABULARY, None), (constraint, None), out, jnp.ones(2, int))
  np.testing.assert_allclose(values, [2 * 0.5 + 0.5, 2 + 0.25])
  never = lexical._replace(value=lambda *_: jnp.float32(-jnp.inf))
  np.testing.assert_allclose(dj.constraints.evaluate(
      dj.constraints.weighted_sum([(0, never), (2, lexical)]),
      (VOCABULARY,) * 2, (constraint,) * 2, out, jnp.ones(2, int)), [1, 2])
  for params in ((VOCABULARY,), VOCABULARY):
    with pytest.raises(ValueError, match="reward_params of a weighted sum is"):
      dj.constraints.evaluate(reward, params, (constraint, None), out,
                              jnp.ones(2, int))
  with pytest.raises(ValueError, match="at least one is needed"):
    dj.constraints.weighted_sum([])


def test_bits_are_packed_from_the_lowest():
  marks = np.zeros(40, bool)
  marks[[0, 31, 33]] = True
  np.testing.assert_array_equal(bits.pack(marks, 2), [2**31 + 1, 2])
