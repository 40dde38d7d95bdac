"""One of some texts: all spellings, beams that are items, and limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import processors, token_text
from decoding_jax.testing import exactness
import decoding_jax as dj
from support import tiny_models as tiny

PIECES = [b"", b"a", b"b", b"ab", b"c", b"bc", b"abc", b"", b"d"]
EOS, V = (0, 7), len(PIECES)
TEXTS = ["ab", "abc", "b", "cab", "abc"]


def spellings(text):
  """All sequences of tokens that spell a text."""
  if not text:
    return [()]
  return [(token, *rest) for token, piece in enumerate(PIECES)
          if piece and text.startswith(piece)
          for rest in spellings(text[len(piece):])]


def sequences(automaton, length):
  """All sequences of at most so many tokens that end, without their end."""
  processor, result = processors.automaton(), []
  automaton = jax.tree.map(jnp.asarray, automaton)

  @jax.jit
  def step(state, token):
    logits = processor.process(automaton, state, jnp.zeros(V))
    return logits, processor.advance(automaton, state, token)

  def extend(tokens, state):
    logits = np.asarray(step(state, 0)[0])
    if logits[0] == 0:
      assert logits[7] == 0  # Both tokens end a text.
      result.append(tokens)
    for token in np.flatnonzero(logits == 0) if len(tokens) < length else ():
      after = step(state, int(token))[1]
      if token in EOS:
        last = np.asarray(step(after, 0)[0])
        assert set(np.flatnonzero(last == 0)) == set(EOS)
      else:
        extend((*tokens, int(token)), after)
    for token in np.flatnonzero(logits < 0):
      assert step(state, int(token))[1] == -1

  extend((), processor.init(automaton))
  assert np.isinf(step(jnp.int32(-1), 0)[0]).all()
  return result


def test_all_spellings_of_some_texts():
  actual = sequences(processors.choice(TEXTS, PIECES, EOS), 4)
  expected = {x for text in TEXTS for x in spellings(text.encode())}
  assert len(actual) == len(expected) and set(actual) == expected
  # No text that ends in the middle of one that cannot be spelled to its end.
  with_other = processors.choice([*TEXTS, "ax"], PIECES, EOS)
  assert set(sequences(with_other, 4)) == expected


def test_names_of_special_tokens_and_one_spelling_of_each_text():
  pieces = [*PIECES[:6], token_text.SpecialToken("<b>"), *PIECES[7:]]
  result = sequences(processors.choice(["a<b>c", "<b>", "ab"], pieces, EOS), 4)
  assert sorted(result) == [(1, 2), (1, 6, 4), (3,), (6,)]
  with pytest.raises(ValueError, match="<b> is a token that ends texts: leave"):
    processors.choice(["a<b>", "c"], pieces, 6)
  # One spelling of each text.
  encode = lambda text: max(spellings(text.encode()), key=len)
  result = sequences(processors.choice(TEXTS, PIECES, EOS, encode), 4)
  assert sorted(result) == sorted({encode(text) for text in TEXTS})


def test_beams_are_the_most_probable_items_of_a_catalogue():
  """Of 40 items of three tokens; the probability of each is enumerated."""
  rng = np.random.default_rng(0)
  items = [tuple(map(int, x)) for x in rng.permutation(
      list(itertools.product((1, 2, 3, 4), repeat=3)))[:40]]
  table, _ = exactness.random_tables(48)
  model = tiny.Model(*dj.processors.apply(
      processors.automaton(), processors.token_choice(items, 48, 0),
      *exactness.table_model(table)))
  out = tiny.generate(
      dj.methods.beam_search(40), tiny.Models(model, model),
      prompts=np.zeros((1, 1), np.int32), lengths=np.ones(1, np.int32),
      new=4, eos_id=0, sampling=dj.Sampling(temperature=0))
  scores = {}
  for item in items:
    probability, before = 1.0, 0
    for i, token in enumerate(item):
      may = {x[i] for x in items if x[:i] == item[:i]}
      probability *= table[before, token] / table[before, sorted(may)].sum()
      before = token
    scores[item] = np.log(probability)
  best = sorted(items, key=scores.get, reverse=True)
  extra = out.stats.extra
  results = [tuple(x[:3]) for x in np.asarray(extra["beams"][0]).tolist()]
  assert results[:10] == best[:10] and sorted(results) == sorted(items)
  np.testing.assert_allclose(extra["beam_log_probs"][0, :10],
                             [scores[x] for x in best[:10]], rtol=1e-4)


@pytest.mark.parametrize("make, message", [
    (lambda: processors.choice([], PIECES, EOS), "at least one is needed"),
    (lambda: processors.choice(["a", ""], PIECES, EOS), "none of them empty"),
    (lambda: processors.choice("ab", PIECES, EOS), "texts='ab': a list of"),
    (lambda: processors.choice(["x"], PIECES, EOS), "cannot spell any of them"),
    (lambda: processors.choice(["a"], PIECES, None), "a token that ends texts"),
    (lambda: processors.token_choice([[1, 7]], V, EOS),
     r"it has token 7: 0 to 8 but for .*\[0, 7\]"),
    (lambda: processors.token_choice([[1, 9]], V, EOS), "it has token 9"),
], ids=["none", "empty", "string", "spelling", "no_end", "end", "unknown"])
def test_errors_tell_what_is_needed(make, message):
  with pytest.raises(ValueError, match=message):
    make()
