"""Guided speculative inference against enumeration."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.search_reference import EOS, fit, ROWS, table, texts

SIZE, NEW, STEPS, BETA, U = 3, 3, 2, 1.5, 0.2
VALUES = np.random.default_rng(0).normal(size=tiny.STATES).astype(np.float32)
TARGET, DRAFT = table(0, size=SIZE), table(1, size=SIZE)
# Many drafts are impossible under this one.
STRICT = table(2, zeros=1, size=SIZE)


def worth(text):
  return tiny.table_value(VALUES, (0, *text))


def drawn(distributions, count):
  """All outcomes of n draws: a dict from tuples of segments."""
  return {tuple(text for text, _ in outcome): np.prod([p for _, p in outcome])
          for outcome in itertools.product(distributions.items(), repeat=count)}


def softmax(x):
  weights = np.exp(np.array(x) - max(x))
  return weights / weights.sum()


def segment(text, room, threshold, count=2, target=TARGET):
  """Of the segment that follows: a dict, and how often the target draws."""
  last, size = (0, *text)[-1], min(STEPS, room)
  target, draft = (texts(x, last, size) for x in (target, DRAFT))
  result, under = collections.Counter(), 0.0
  for outcome, p in drawn(draft, count).items():
    if not any(x in target for x in outcome):
      under += p
      continue
    with np.errstate(divide="ignore"):
      tilted = [worth((*text, *x)) + np.log(target.get(x, 0) / draft[x]) / BETA
                for x in outcome]
    for x, value, q in zip(outcome, tilted, softmax(BETA * np.array(tilted))):
      if value >= threshold:
        result[x] += p * q
      else:
        under += p * q
  for outcome, p in drawn(target, count).items():
    for x, q in zip(outcome, softmax(
        [BETA * worth((*text, *x)) for x in outcome])):
      result[x] += under * p * q
  return result, under


def distribution(threshold, text=(), target=TARGET):
  if len(text) == NEW or text and text[-1] == EOS:
    return {text: 1.0}
  result = collections.Counter()
  for x, p in segment(text, NEW - len(text), threshold,
                      target=target)[0].items():
    for whole, q in distribution(threshold, (*text, *x), target).items():
      result[whole] += p * q
  return result


@functools.lru_cache(maxsize=None)
def generate(threshold, strict=False, rows=ROWS):
  out = dj.generate(
      jax.random.key(0), jnp.zeros((rows, 1), jnp.int32),
      jnp.ones(rows, jnp.int32),
      **tiny.arguments(tiny.tables(STRICT if strict else TARGET, DRAFT)),
      method=dj.methods.gsi(2, STEPS, BETA, threshold), max_new_tokens=NEW,
      eos_id=EOS, reward=tiny.table_reward(), reward_params=1.0,
      constraints=np.tile(VALUES, (rows, 1)))
  return jax.tree.map(np.asarray, out)


@pytest.mark.cases(1)
@pytest.mark.parametrize("threshold, strict", [
    (None, False), (U, False), (None, True)])
def test_texts_equal_enumeration(threshold, strict):
  """Control: another threshold gives another distribution."""
  lowest, target = (-np.inf if threshold is None else threshold,
                    STRICT if strict else TARGET)
  out, expected = generate(threshold, strict), distribution(lowest, (), target)
  assert sum(expected.values()) == pytest.approx(1)
  assert fit(out, expected) > exactness.MIN_P_VALUE
  other = distribution(U if threshold is None else -np.inf, (), target)
  assert fit(out, other) < helpers.MAX_P_VALUE_OF_CONTROL


def test_counts():
  out = generate(U)
  stats = out.stats
  under = segment((), NEW, U)[1]
  longer = out.lengths - 1 > STEPS
  segments = 1 + longer
  firsts = stats.extra["fallbacks"][~longer]
  assert set(firsts) == {0, 1} and 0.1 < under < 0.9
  np.testing.assert_array_equal(stats.extra["reward_calls"],
                                2 * (segments + stats.extra["fallbacks"]))
  none = stats.extra["fallbacks"] == 0
  np.testing.assert_array_equal(stats.target_calls[none], segments[none])
  assert (stats.target_calls[~none] > segments[~none]).all()


def test_more_samples_approach_the_tilted_distribution():
  target = texts(TARGET, 0, STEPS)
  tilted = {x: p * np.exp(BETA * worth(x)) for x, p in target.items()}
  total = sum(tilted.values())
  distances = []
  for count in (1, 2, 4):
    result, _ = segment((), NEW, -np.inf, count)
    distances.append(sum(abs(result[x] - p / total) for x, p in tilted.items()))
  assert distances[0] > distances[1] > distances[2]


def with_keys(method):
  """The method; its statistics have the keys of the draft cache at the end."""
  def told(function):
    def run(context, state):
      new = function(context, state)
      keys = jnp.moveaxis(new.draft_cache.keys[0], 1, 0)
      return new.replace(stats=new.stats.replace(
          extra={**new.stats.extra, "keys": keys}))

    return run

  decoder = method.sampled
  return method._replace(sampled=decoder._replace(
      init=told(decoder.init), step=told(decoder.step)))


METHOD = with_keys(dj.methods.gsi(2, 3, 1.0, 0.3, end=6))


def test_a_transformer_and_its_caches():
  """Segments that end early, and what caches hold."""
  models = tiny.llama_models()
  values = np.random.default_rng(2).normal(size=(3, tiny.STATES)).astype(
      np.float32)
  out = jax.tree.map(np.asarray, tiny.generate(
      METHOD, models, key=jax.random.split(jax.random.key(1), 3), eos_id=3,
      reward=tiny.table_reward(), reward_params=1.0, constraints=values))
  fallbacks, steps = out.stats.extra["fallbacks"], out.stats.accepted_by_depth
  assert fallbacks.any() and (fallbacks < steps[:, 0]).any()
  log_probs = tiny.log_probs(models.target, out.tokens)
  _, block = tiny.causal(models.draft, np.maximum(out.tokens, 0))
  drafted = np.moveaxis(np.asarray(block.keys[0]), 1, 0)
  for row, (start, end) in enumerate(zip(tiny.LENGTHS, out.lengths)):
    np.testing.assert_allclose(out.stats.extra["keys"][row, ..., :end - 1],
                               drafted[row, ..., :end - 1], atol=1e-4)
    for i in range(start, end):
      assert out.log_probs[row, i] == pytest.approx(
          log_probs[row, i - 1, out.tokens[row, i]], abs=1e-4)
