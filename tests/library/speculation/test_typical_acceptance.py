"""Typical acceptance against plain Python on whole texts. It is lossy."""

import itertools
import math

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation.verifiers import typical_acceptance
from decoding_jax.testing import exactness
from support import tiny_models as tiny

V, NEW = 6, 12
TARGET, DRAFT = exactness.random_tables(V, 1, 1)


def children(path, count):
  """Returns a path, which begins with the last token, with one token more."""
  best = np.argsort(-DRAFT[path[-1]], kind="stable")[:count]
  return [(*path, int(token)) for token in best if DRAFT[path[-1], token] > 0]


def product(token, *branching):
  """Returns the paths of a tree with these numbers of children."""
  paths = [(token,)]
  for count in branching:
    paths = [x for path in paths for x in children(path, count)]
  return paths


def beam(token, width, depth):
  """Returns the paths of a beam search, those that end early too."""
  level, paths = [(token,)], []
  for _ in range(depth):
    level = sorted((x for path in level for x in children(path, V)),
                   key=lambda x: -math.prod(DRAFT[x[:-1], x[1:]]))[:width]
    paths += level
  return paths


# Paths of a tree, and what drafts it.
DRAFTED = {
    "chain": (lambda token: product(token, 1, 1, 1),
              expanders.top_k((1, 1, 1))),
    "fixed": (lambda token: product(token, 3, 2), expanders.top_k((3, 2))),
    "static": (lambda token: product(token, 2, 2), expanders.static_tree(
        ((2,), (2, 2)), dj.Draws.ARBITRARY)),
    "beam": (lambda token: beam(token, 3, 2), expanders.top_beam(3, 2)),
    # Its layout is free.
    "best first": (lambda token: product(token, 2, 2), drafters.best_first(
        6, 2, 2, 1.0, True, 0.0))}


def method(drafter, *numbers, greedy=True):
  return dj.Method("typical", verifiers.pair(
      drafter, typical_acceptance.verifier(*numbers, greedy), lossy=True), None)


def generate(made, prompts, key=0, **sampling):
  return dj.generate(
      jax.random.key(key), np.array(prompts, np.int32)[:, None],
      np.ones(len(prompts), np.int32), method=made, max_new_tokens=NEW,
      sampling=dj.Sampling(**sampling),
      **tiny.arguments(tiny.tables(TARGET, DRAFT)))


def accepted(target, paths, epsilon, delta):
  """Returns the longest typical beginning of a path, without its first token,
  and of equally long ones the most probable."""
  best = [(0, 0.0, ())]
  for path in paths:
    likelihood = 0.0
    for i, (last, token) in enumerate(itertools.pairwise(path), 1):
      probs = target[last]
      entropy = -sum(p * math.log(p) for p in probs if p > 0)
      if probs[token] <= min(epsilon, delta * math.exp(-entropy)):
        break
      likelihood += math.log(probs[token])
      best.append((i, likelihood, path[1:i + 1]))
  return max(best)[2]


def text(target, token, drafted, *numbers):
  """Returns a token, the text after it, and how many target calls it took."""
  written, calls = [token], 0
  while len(written) <= NEW:
    written += accepted(target, drafted(written[-1]), *numbers)
    written.append(int(np.argmax(target[written[-1]])))
    calls += 1
  return written[:1 + NEW], calls


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", DRAFTED)
def test_texts_are_those_of_plain_python(name):
  drafted, drafter = DRAFTED[name]
  counts = set()
  for epsilon, delta in ((0.09, 0.3), (0.3, 0.6)):
    out = generate(method(drafter, epsilon, delta), range(V))
    for token in range(V):
      expected, calls = text(TARGET, token, drafted, epsilon, delta)
      assert out.tokens[token].tolist() == expected
      assert out.stats.target_calls[token] == calls
      counts.add(calls)
  assert len(counts) > 1


def test_the_target_is_warped_first():
  warped = TARGET**2 / (TARGET**2).sum(axis=1, keepdims=True)
  drafted, drafter = DRAFTED["fixed"]
  texts = []
  for target, temperature in ((TARGET, 1.0), (warped, 0.5)):
    out = generate(method(drafter, 0.3, 0.8), range(V),
                   temperature=temperature)
    texts.append(out.tokens.tolist())
    assert texts[-1] == [text(target, token, drafted, 0.3, 0.8)[0]
                         for token in range(V)]
  assert texts[0] != texts[1]


def test_the_token_after_the_path_is_drawn():
  made = dj.methods.rsd_c((3, 2), "typical:0.3:0.6", lossy=True)
  paths = [accepted(TARGET, product(token, 3, 2), 0.3, 0.6)
           for token in range(V)]
  assert len(set(map(len, paths))) > 1
  texts = np.asarray(generate(made, np.repeat(np.arange(V), 5000)).tokens)
  for token, path in enumerate(paths):
    rows = texts[token * 5000:][:5000]
    assert (rows[:, 1:1 + len(path)] == path).all()
    last = rows[0, len(path)]
    counts = np.bincount(rows[:, 1 + len(path)], minlength=V)
    assert exactness.chi_square(counts, TARGET[last]) > exactness.MIN_P_VALUE


@pytest.mark.parametrize("epsilon, count", [(0.09, 2), (0.01, 4)])
def test_worked_example_of_the_docstring(epsilon, count):
  target = np.tile([0.5, 0.4, 0.08, 0.02], (4, 1))
  made = method(expanders.top_k((1,)), epsilon)
  calls = []
  for token in range(4):
    draft = np.tile(np.eye(4)[token], (4, 1))
    _, stats = exactness.frequencies(made, target, draft, rows=1, length=2)
    calls.append(stats.target_calls[0])
  assert calls == [1] * count + [2] * (4 - count)


def test_names_say_that_it_is_lossy():
  for make, sizes in ((dj.methods.speculative, (2,)),
                      (dj.methods.rsd_c, ((2, 1),)),
                      (dj.methods.rsd_s, (2, 2)),
                      (dj.methods.sequoia, (((2,), (1, 0)),))):
    made = make(*sizes, "typical", lossy=True)
    assert made.name.endswith(", typical, lossy=True)")
    assert made.greedy == make(*sizes).greedy
    assert not dj.testing.check(made, rows=2000, vocab_sizes=(6,)).is_exact
    with pytest.raises(ValueError, match="^lossy=False: .* changes the distr"
                                         ".*, which lossy=True allows"):
      make(*sizes, "typical")
    # It allows no drafts that an exact rule is wrong for.
    assert make(*sizes, lossy=True).sampled == make(*sizes).sampled
  with pytest.raises(ValueError, match="draws=ARBITRARY, Verifier.takes="):
    verifiers.pair(expanders.top_k((2,)), verifiers.recursive(False), True)


@pytest.mark.parametrize("rule, words", [
    ("typical:x", "epsilon of typical acceptance='x': a number from 0 to 1"),
    ("typical:", "epsilon of typical acceptance='': a number from 0 to 1"),
    ("typical:2", "epsilon of typical acceptance=2.0: a number from 0 to 1"),
    ("typical:0.1:-1", "delta of typical acceptance=-1.0: a number from 0"),
    ("recursive:1", "verification='recursive:1': one of"),
    (7, "verification=7: one of .*'typical'")])
def test_wrong_numbers_are_refused(rule, words):
  with pytest.raises(ValueError, match=words):
    dj.methods.rsd_c((2, 2), rule, lossy=True)


@pytest.mark.parametrize("make, sizes", [
    (dj.methods.specinfer, dict(num_paths=2, depth=2)),
    (dj.methods.masked_draft, dict(branching=(2,))),
    (dj.methods.shared_budget, dict(nodes=1, width=2, depth=1))])
def test_methods_without_greedy_drafts_do_not_have_it(make, sizes):
  with pytest.raises(ValueError, match="verification='typical': one of"):
    make(**sizes, verification="typical")
