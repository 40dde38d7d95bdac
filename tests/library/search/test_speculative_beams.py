"""Speculative beam search: the beams of beam search, with fewer calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import beam as beam_lib, types
from decoding_jax.testing import exactness
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.search import relaxed_beams, texts as texts_lib
from support import tiny_models as tiny

METHOD, BEAMS = dj.methods.at_speed(2, 4, 3), dj.methods.beam_search(2)
EXTRA = ("beams", "beam_lengths")


def generate(method, models, **kwargs):
  return jax.tree.map(np.asarray, tiny.generate(method, models, eos_id=3,
                                                **kwargs))


def check_same(actual, expected):
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  np.testing.assert_allclose(actual.log_probs, expected.log_probs, atol=1e-4)
  for name in EXTRA:
    np.testing.assert_array_equal(actual.stats.extra[name],
                                  expected.stats.extra[name])
  for name in ("beam_log_probs", "beam_scores"):
    np.testing.assert_allclose(actual.stats.extra[name],
                               expected.stats.extra[name], atol=1e-4)


def check_counts(stats):
  """Calls add up, and so do drafted levels that they accepted."""
  calls, by_depth = stats.target_calls, stats.accepted_by_depth
  np.testing.assert_array_equal(by_depth.sum(axis=1), calls)
  levels = by_depth @ np.arange(1, by_depth.shape[1] + 1)
  np.testing.assert_array_equal(levels, stats.extra["beam_lengths"].max(axis=1))
  np.testing.assert_array_equal(stats.draft_calls, 1 + 3 * (calls - 1))
  np.testing.assert_array_equal(stats.nodes, 12 * (calls - 1))


def test_beams_of_a_transformer():
  models, sampling = tiny.llama_models(), dj.Sampling(0.7)
  expected = generate(BEAMS, models, sampling=sampling)
  actual = generate(METHOD, models, sampling=sampling)
  check_same(actual, expected)
  check_counts(actual.stats)
  assert actual.stats.target_calls.sum() < expected.stats.target_calls.sum()


def test_the_target_as_its_own_drafter_is_always_right():
  """Only if the draft model has read all that it should have."""
  target = tiny.llama_models().target
  models = tiny.Models(target, target)
  out = generate(METHOD, models)
  check_same(out, generate(BEAMS, models))
  by_depth = out.stats.accepted_by_depth
  # The first call is before any draft, and the last may have no room.
  assert (by_depth[:, :-1].sum(axis=1) <= 2).all()
  lengths = out.stats.extra["beam_lengths"].max(axis=1)
  np.testing.assert_array_equal(out.stats.target_calls,
                                1 + -(-(lengths - 1) // 4))


def test_a_drafter_of_another_mind():
  """Control: nothing is accepted, and the beams are the same."""
  target = tiny.llama_models().target
  other = tiny.Model(target.lm, jax.tree.map(
      lambda x: -x if x.ndim > 1 else x, target.params))
  actual = generate(METHOD, tiny.Models(target, other))
  check_same(actual, generate(BEAMS, tiny.llama_models()))
  expected = actual.stats.extra["beam_lengths"].max(axis=1)
  assert actual.stats.target_calls.sum() > 0.7 * expected.sum()


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed, temperature, penalty", [
    (0, 1.0, 0.0), (1, 1.0, 2.0), (2, 0.0, 0.0)])
def test_beams_of_tables(seed, temperature, penalty):
  """Texts of all lengths end at once, in rows that accept differently."""
  rng = np.random.default_rng(seed)
  target = exactness.random_table(rng, 13, zeros=4)
  draft = 0.7 * target + 0.3 * exactness.random_table(rng, 13)
  models, sampling = tiny.tables(target, draft), dj.Sampling(temperature)
  out = generate(dj.methods.at_speed(2, 4, 3, penalty), models,
                 sampling=sampling)
  check_same(out, generate(dj.methods.beam_search(2, penalty), models,
                           sampling=sampling))
  check_counts(out.stats)


RELAXED = dj.methods.at_speed(2, 4, 3, relaxed=True)


def test_relaxed_verification_of_the_target_itself_is_strict():
  """All that it drafts is accepted, but for a level that is not drafted."""
  target = tiny.llama_models().target
  models = tiny.Models(target, target)
  out = generate(RELAXED, models, new=4)
  check_same(out, generate(BEAMS, models, new=4))
  assert (out.stats.target_calls <= 2).all()


def test_relaxed_verification_is_lossy_and_accepts_more():
  rng = np.random.default_rng(4)
  target = exactness.random_table(rng, 13)
  draft = 0.4 * target + 0.6 * exactness.random_table(rng, 13)
  models = tiny.tables(target, draft)
  arguments = dict(prompts=np.tile(tiny.PROMPTS, (20, 1)),
                   lengths=np.tile(tiny.LENGTHS, 20), new=12)
  strict, relaxed = (generate(x, models, **arguments)
                     for x in (METHOD, RELAXED))
  calls = [x.stats.target_calls.sum() for x in (strict, relaxed)]
  assert calls[1] < 0.9 * calls[0]
  beams, lengths = (relaxed.stats.extra[x] for x in EXTRA)
  last = arguments["prompts"][np.arange(60), arguments["lengths"] - 1]
  for row in range(60):
    assert len({tuple(x) for x in beams[row].tolist()}) == 2
    for text, length, actual in zip(beams[row], lengths[row],
                                    relaxed.stats.extra["beam_log_probs"][row]):
      text = [last[row], *text[:length]]
      expected = sum(np.log(target[a, b]) for a, b in zip(text, text[1:]))
      np.testing.assert_allclose(actual, expected, rtol=1e-4)
  best = [x.stats.extra["beam_log_probs"].mean() for x in (strict, relaxed)]
  assert best[1] < best[0] - 0.1


def test_how_often_relaxed_verification_accepts():
  """One beam of one draft: with probability p / q, else what p leaves of q."""
  rng = np.random.default_rng(5)
  p, q = (exactness.random_probs(rng, 6) for _ in range(2))
  rows, token = 20_000, int(np.argmax(q - p))
  beam = jax.tree.map(lambda x: jnp.zeros((rows, 1)), beam_lib.root())
  texts = texts_lib.empty(rows, 1, 0).replace(
      beam=beam, state=jnp.zeros((rows, 1), jnp.int32))
  wide = lambda x: jnp.full((rows, 1), x)
  expand = relaxed_beams.expand((wide(token), wide(0), wide(True),
                                 wide(np.float32(np.log(q[token])))))
  tokens = expand(jax.random.split(jax.random.key(0), rows), None,
                  jnp.broadcast_to(jnp.log(p)[None, None].astype(jnp.float32),
                                   (rows, 1, 6)), texts, 1)[0]
  counts = np.bincount(np.asarray(tokens)[:, 0], minlength=6)
  rest = p * (np.arange(6) != token)
  accepted = p[token] / q[token]
  expected = (1 - accepted) * rest / rest.sum()
  expected[token] = accepted
  assert exactness.p_value(counts, expected) > exactness.MIN_P_VALUE
  assert exactness.p_value(counts, p) < 1e-5


@pytest.mark.cases(1)
@pytest.mark.parametrize("method, new", [
    (dj.methods.at_speed(1, 1, 1, 1.0), 9), (dj.methods.at_speed(3, 3, 2), 1)],
                         ids=["one beam", "one token"])
def test_edges(method, new):
  models = tiny.tables(exactness.random_table(np.random.default_rng(9), 13))
  beams = dj.methods.beam_search(int(method.name[9]), 1.0 if new > 1 else 0.0)
  check_same(generate(method, models, new=new),
             generate(beams, models, new=new))


def test_slots_of_a_block_are_moved():
  rng = np.random.default_rng(0)
  keys, values, features = (
      rng.normal(size=shape) for shape in (
          (3, 2, 1, 4, 6), (2, 1, 6, 4), (2, 6, 5)))
  block = types.Block((jnp.asarray(keys),), (jnp.asarray(values),),
                      {"own": jnp.asarray(features)})
  sources = np.array([[4, 5], [3, 4]])
  targets = np.array([[1, 99], [2, 0]])
  result = cache_lib.move(block, sources, targets)
  for row, source, target in ((0, 4, 1), (1, 3, 2), (1, 4, 0)):
    keys[:, row, ..., target] = keys[:, row, ..., source]
    values[row, :, target] = values[row, :, source]
    features[row, target] = features[row, source]
  np.testing.assert_allclose(result.keys[0], keys, rtol=1e-6)
  np.testing.assert_allclose(result.values[0], values, rtol=1e-6)
  np.testing.assert_allclose(result.features["own"], features, rtol=1e-6)
