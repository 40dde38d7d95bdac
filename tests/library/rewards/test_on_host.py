"""Rewards that a Python function computes, against the same on the device."""

import re
import threading

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny


ROWS, V, NEW, EOS = 6, 7, 6, 2
PROMPTS = np.random.default_rng(1).integers(0, V, (ROWS, 3)).astype(np.int32)
LENGTHS = np.arange(ROWS, dtype=np.int32) % 3 + 1
TABLES = np.random.default_rng(7).normal(size=(ROWS, tiny.STATES)).astype(
    np.float32)
METHODS = {
    "cdlh": (dj.methods.cdlh(3, 2), 0.0),
    "cdsl_extended": (dj.methods.cdsl_extended(2, 3, commit="rise"), 0.0),
    "best_of_n": (dj.methods.best_of_n(3), 1.0),
    "beam_search": (dj.methods.beam_search(3), 0.0),
    "a_star": (dj.methods.a_star(2, 2, 3), 1.0),
    "pg_td": (dj.methods.pg_td(2, 4), 0.0),
    "particles": (dj.methods.particles(3), 1.0),
    "segment_search": (dj.methods.segment_search(2, 2, 2), 1.0)}


def table_values(texts, prompts, constraints):
  """The function of `tiny.table_reward`."""
  return [tiny.table_value(table, [*prompt, *text])
          for text, prompt, table in zip(texts, prompts, constraints)]


def run(method, reward, temperature=0.0, some=slice(None), **kwargs):
  rng = np.random.default_rng(0)
  table = exactness.random_table(rng, V)
  models = tiny.tables(
      table, 0.6 * table + 0.4 * exactness.random_table(rng, V))
  return tiny.generate(
      method, models, prompts=PROMPTS[some], lengths=LENGTHS[some], new=NEW,
      eos_id=EOS, reward=reward, sampling=dj.Sampling(temperature=temperature),
      **{"constraints": TABLES[some], **kwargs})


def simple(fn, **kwargs):
  """The generation of a method whose reward is computed once, at the end."""
  reward = dj.rewards.on_host(fn, **{"max_tokens": NEW, **kwargs})
  out = run(dj.methods.autoregressive(), reward, constraints=None)
  return out, reward


def failing(fn, **kwargs):
  """The last line of the error of a generation."""
  with pytest.raises(jax.errors.JaxRuntimeError) as result:
    jax.block_until_ready(simple(fn, **kwargs)[0].stats.extra["reward"])
  return str(result.value).strip().split("\n")[-1]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", METHODS)
def test_methods_decode_as_with_the_same_reward_on_the_device(name):
  method, temperature = METHODS[name]
  reward = dj.rewards.on_host(table_values, max_tokens=NEW)
  actual = run(method, reward, temperature)
  expected = run(method, tiny.table_reward(), temperature, reward_params=1.0)
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
               actual.stats, expected.stats)


def test_control_another_function_is_another_text():
  reward = dj.rewards.on_host(
      lambda texts, prompts, constraints: [
          -x for x in table_values(texts, prompts, constraints)],
      max_tokens=NEW)
  method = METHODS["cdlh"][0]
  assert not np.array_equal(
      run(method, reward).tokens,
      run(method, dj.rewards.on_host(table_values, max_tokens=NEW)).tokens)


def test_a_row_alone_and_in_a_queue():
  """As in a batch, that is."""
  method, reward = METHODS["cdlh"][0], dj.rewards.on_host(table_values,
                                                          max_tokens=NEW)
  expected = run(method, reward)
  queued = run(method, reward, rows=4)
  np.testing.assert_array_equal(queued.tokens, expected.tokens)
  alone = run(method, reward, some=slice(2, 3))
  np.testing.assert_array_equal(alone.tokens, expected.tokens[2:3])


def test_texts_are_decoded_and_equal_ones_are_scored_once():
  calls = []

  def score(texts, prompts):
    calls.append(list(zip(prompts, texts)))
    return [text.count("3") for text in texts]

  reward = dj.rewards.on_host(
      score, decode=lambda tokens: " ".join(map(str, tokens)), max_tokens=NEW)
  out = run(dj.methods.best_of_n(8), reward, 1.0, constraints=None)
  given = [pair for call in calls for pair in call]
  assert len(given) == len(set(given))
  for prompt, length, beams, ends, value in zip(
      PROMPTS, LENGTHS, *map(np.asarray, (
          out.stats.extra["beams"], out.stats.extra["beam_lengths"],
          out.stats.extra["reward"]))):
    before = " ".join(map(str, prompt[:length]))
    # A blank between prompt and text is part of the text.
    texts = ["".join(f" {x}" for x in beam[:n])
             for beam, n in zip(beams, ends)]
    assert {(before, text) for text in texts} <= set(given)
    assert value == max(text.count("3") for text in texts)
  report = dj.rewards.host_report(reward)
  assert report.texts == len(given) and report.failed == 0
  # Eight texts of each row, and the best one once more.
  assert report.calls == len(calls) and report.repeated == 9 * ROWS - len(given)
  assert 0 < report.slowest <= report.seconds


def test_values_that_are_not_remembered_are_computed_again():
  for size, again in ((1, True), (ROWS, False)):
    reward = simple(lambda texts: [len(x) for x in texts], cache_size=size)[1]
    before = dj.rewards.host_report(reward)
    run(dj.methods.autoregressive(), reward, constraints=None)
    assert (dj.rewards.host_report(reward).calls > before.calls) == again


def test_equal_arguments_are_the_same_reward_and_sums_have_it_as_a_part():
  reward = dj.rewards.on_host(table_values, max_tokens=NEW)
  assert reward is dj.rewards.on_host(table_values, max_tokens=NEW)
  assert dj.rewards.host_report(tiny.table_reward()) is None
  reward = dj.rewards.weighted_sum([
      (2.0, dj.rewards.on_host(lambda texts: [len(x) for x in texts],
                               max_tokens=NEW)),
      (1.0, dj.rewards.length(0, 1))])
  out = run(dj.methods.autoregressive(), reward, constraints=None)
  lengths = np.asarray(out.lengths) - LENGTHS
  np.testing.assert_allclose(out.stats.extra["reward"],
                             2.0 * lengths + 1 / lengths)


def raises(texts):
  if any(len(text) < NEW for text in texts):
    raise KeyError("a short text")
  return [1.0] * len(texts)


@pytest.mark.cases(2)
@pytest.mark.parametrize("fn, given, words", [
    (raises, {}, "the reward on the host raised KeyError: 'a short text'; for"),
    (lambda texts: [float("nan")] * len(texts), {}, "returned NaN; for 1 text"),
    (lambda texts: [0.0], {},
     "an array of shape \\(1,\\): \\[[2-6]\\], a number"),
    (lambda texts: None, {}, "of shape \\(\\)|returned None"),
    (lambda texts: ["good"] * len(texts), {},
     "returned \\['good'.* numbers are"),
    (lambda texts: [2.0] * len(texts), {},
     "returned 2.0: at most maximum=1.0"),
    (lambda texts: [0.0] * len(texts), {"max_tokens": 2},
     "max_tokens=2 of a reward on the host: a text has 6"),
], ids=lambda x: x.__name__ if callable(x) else "")
def test_errors_say_what_went_wrong(fn, given, words):
  assert re.search(words, failing(fn, maximum=1.0, **given))


@pytest.mark.parametrize("fn, fallback", [
    (raises, -3.0),
    (lambda texts: [float("nan") if len(x) < NEW else 1.0 for x in texts],
     -np.inf)], ids=["raises", "nan"])
def test_a_fallback_is_for_the_texts_that_fail_alone(fn, fallback):
  out, reward = simple(fn, fallback=fallback)
  short = np.asarray(out.lengths) - LENGTHS < NEW
  assert short.any() and not short.all()
  np.testing.assert_array_equal(out.stats.extra["reward"],
                                np.where(short, fallback, 1.0))
  report = dj.rewards.host_report(reward)
  assert report.failed == len({
      (*PROMPTS[i, :LENGTHS[i]], *np.asarray(out.tokens)[i])
      for i in np.flatnonzero(short)})
  # Only what raises is asked for each text alone.
  assert fn is raises or report.calls == 1


def test_a_function_that_takes_too_long():
  """It is waited for by nobody: the event is set after the results are in."""
  event = threading.Event()

  def waits(texts):
    event.wait()
    return [1.0] * len(texts)

  out, reward = simple(waits, timeout=0.05, fallback=0.5)
  np.testing.assert_array_equal(out.stats.extra["reward"], 0.5)
  assert dj.rewards.host_report(reward).failed > 0
  assert "took more than 0.06 seconds" in failing(waits, timeout=0.06)
  event.set()


def test_a_function_may_use_jax():
  length = jax.jit(lambda x: (x >= 0).sum())

  def score(texts):
    return [length(np.pad(text, (0, NEW - len(text)), constant_values=-1))
            for text in texts]

  out, reward = simple(score, timeout=60)
  np.testing.assert_array_equal(out.stats.extra["reward"],
                                np.asarray(out.lengths) - LENGTHS)
  # It was in time.
  assert dj.rewards.host_report(reward).failed == 0


@pytest.mark.parametrize("arguments, words", [
    (dict(fn=3), "fn=3: a function"), (dict(decode=3), "decode=3: a function"),
    (dict(max_tokens=0), "max_tokens=0"), (dict(timeout=0), "timeout=0"),
    (dict(fallback=float("nan")), "fallback=nan: a number"),
    (dict(fallback=5., maximum=1.), "fallback=5.0: at most maximum=1.0"),
    (dict(maximum="one"), "maximum='one'"), (dict(cache_size=0), "cache_size="),
], ids=lambda x: next(iter(x)) if isinstance(x, dict) else "")
def test_arguments(arguments, words):
  with pytest.raises(ValueError, match=words):
    dj.rewards.on_host(**{"fn": len, "max_tokens": 3, **arguments})
