"""Caches that grow: the same texts, and no more slots than are needed."""

import jax
import pytest

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib, cache_growth
from support import tiny_models as tiny
from support.example_methods import each
from support.helpers import check_same

METHODS = [dj.methods.autoregressive(), dj.methods.rsd_s(2, 2)]
NEW = 12


@pytest.fixture(name="sizes")
def _sizes(monkeypatch):
  """Caches begin as small as they can be; what they grow from, and to."""
  sizes, grow = [], cache_growth.grow
  monkeypatch.setattr(cache_lib, "_STEP", 1)
  monkeypatch.setattr(cache_growth, "_ROOM", 2)

  def spy(state, slots):
    sizes.append((cache_lib.capacity(state.target_cache), slots))
    return grow(state, slots)

  monkeypatch.setattr(cache_growth, "grow", spy)
  return sizes


def run(method):
  sampling = dj.Sampling(1.0 if method.sampled else 0.0)
  return tiny.generate(method, tiny.llama_models(), new=NEW, sampling=sampling)


@pytest.mark.cases(1)
@each(METHODS)
def test_texts_are_those_of_full_caches(method, sizes):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(cache_growth, "initial_slots", lambda least, full, _: full)
    expected = run(method)
  assert not sizes
  actual = run(method)
  check_same(actual, expected)
  assert actual.steps == expected.steps
  assert sizes and all(after <= 2 * before for before, after in sizes)


def test_what_has_no_text_in_a_cache_needs_none_for_it(sizes):
  run(dj.methods.beam_search(2))
  assert not sizes


def test_control_caches_that_do_not_grow(sizes, monkeypatch):
  expected = run(METHODS[0])
  assert sizes
  monkeypatch.setattr(cache_lib, "capacity", lambda cache: None)
  tiny.generate_lib._generate.clear_cache()
  try:
    assert (run(METHODS[0]).tokens != expected.tokens).any()
  finally:
    tiny.generate_lib._generate.clear_cache()


def test_a_small_budget_has_one_size():
  assert cache_growth.initial_slots(40, 700) == 700
  assert cache_growth.initial_slots(40, 8192) == 576
  assert cache_growth.next_slots(576, 8192) == 1152
  assert cache_growth.next_slots(4608, 8192) == 8192


def test_one_program_has_one_size(sizes):
  model, keys = tiny.llama_models().target, jax.random.split(jax.random.key(0),
                                                             3)
  generated = lambda keys: dj.generate(
      keys, tiny.PROMPTS, tiny.LENGTHS, method=METHODS[0], target=model.lm,
      target_params=model.params, max_new_tokens=NEW)
  out = jax.eval_shape(lambda: generated(keys))
  assert out.tokens.shape == (3, tiny.PROMPTS.shape[1] + NEW) and not sizes
  check_same(jax.jit(generated)(jax.random.key(0)), run(METHODS[0]))
  assert len(sizes) == 2


@pytest.mark.cases(1)
@each(METHODS)
def test_a_stream_tells_of_the_same_texts(method, sizes):
  """Between results caches grow, or not; all texts only become longer."""
  expected = run(method)
  outs = list(dj.stream(
      jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS, every=3, method=method,
      max_new_tokens=NEW, **tiny.arguments(tiny.llama_models())))
  assert sizes
  steps = [int(out.steps) for out in outs]
  assert steps[-1] == expected.steps and len(steps) > 2
  assert all(0 < b - a <= 3 for a, b in zip([0, *steps], steps))
  check_same(outs[-1], expected)
  for before, after in zip(outs, outs[1:]):
    for row, length in enumerate(before.lengths):
      assert after.lengths[row] >= length
      assert (after.tokens[row, :length] == before.tokens[row, :length]).all()


def test_what_a_stream_refuses():
  model = tiny.llama_models().target
  arguments = dict(method=METHODS[0], target=model.lm, max_new_tokens=NEW)

  def traced(params):
    return list(dj.stream(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
                          target_params=params, **arguments))

  with pytest.raises(ValueError, match="stream comes back to the host"):
    jax.eval_shape(traced, model.params)
  with pytest.raises(ValueError, match="every=0: "):
    next(dj.stream(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS, every=0,
                   target_params=model.params, **arguments))
