"""Filling of canvases: distributions, rows, caches, ends and errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.canvas import confidence
from models import transformer
from support import masked_models as toys, tiny_models as tiny


canvas = dj.canvas
STATIC = canvas.methods.static
# Chi-square over 36 pairs of tokens: far below 1e-6 of probability beyond.
ROWS, THRESHOLD = 8192, 95.0


def _pairs(method, temperature=1.0, confidence_=confidence.largest):
  """Returns counts `[36]` of the pairs that fill a canvas of two places."""
  tokens = toys.fill(
      method, temperature, key=jax.random.key(5), prompts=np.full((ROWS, 1), 2),
      prompt_lengths=np.ones(ROWS, np.int32), length=2, block=2, eos_id=None,
      confidence=confidence_).tokens
  return np.bincount(tokens[:, 0] * 6 + tokens[:, 1], minlength=36)


def _expected(one_by_one):
  """Returns the exact distribution `[36]` of pairs of tokens."""
  def probs(tokens):
    logits = toys.toy_logits(toys.toy_params(), tokens)[1:, :6]
    return np.exp(logits - np.logaddexp.reduce(logits, 1, keepdims=True))

  mask, first = toys.MASK, probs([2, toys.MASK, toys.MASK])
  if not one_by_one:
    return np.outer(first[0], first[1]).ravel()
  # The surer place is filled first, then the other one, which sees it.
  place = int(np.argmax(first.max(axis=1)))
  joint = np.zeros((6, 6))
  for x, y in itertools.product(range(6), range(6)):
    seen = [2, x, mask] if place == 0 else [2, mask, y]
    joint[x, y] = first[place, (x, y)[place]] * probs(seen)[
        1 - place, (x, y)[1 - place]]
  return joint.ravel()


def _statistic(counts, expected):
  return np.sum((counts - ROWS * expected)**2 / (ROWS * expected))


def test_one_token_a_step_is_the_models_distribution():
  counts = _pairs(STATIC(1))
  assert _statistic(counts, _expected(True)) < THRESHOLD
  # Negative controls: both at once, and another temperature.
  assert _statistic(counts, _expected(False)) > 3 * THRESHOLD
  assert _statistic(_pairs(STATIC(1), 0.8), _expected(True)) > 3 * THRESHOLD


def test_two_tokens_a_step_are_independent():
  counts = _pairs(STATIC(2), confidence_=confidence.probability)
  assert _statistic(counts, _expected(False)) < THRESHOLD


def test_a_row_alone_is_a_row_of_a_batch():
  method = canvas.methods.free_dave(2, 4)
  together = toys.fill(method, 0.7)
  for row, (prompt, size) in enumerate(zip(*toys.prompts())):
    alone = toys.fill(method, 0.7, key=toys.row_key(row)[None],
                      prompts=prompt[None], prompt_lengths=np.array([size]))
    for name in ("tokens", "lengths", "filled_at", "forwards", "steps"):
      np.testing.assert_array_equal(getattr(alone, name)[0],
                                    getattr(together, name)[row])


@pytest.fixture(name="network", scope="module")
def _network():
  config = transformer.Config(
      vocab_size=toys.VOCAB, dim=16, num_layers=2, num_heads=2, num_kv_heads=1,
      head_dim=8, hidden_dim=16, max_length=32)
  params = jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x,
                        tiny.init(jax.random.key(2), config))
  return transformer.language_model(config), params


def _with_network(network, cache, method=STATIC(1), given=None, **fields):
  lm, params = network
  return canvas.generate(
      jax.random.key(1), *toys.prompts(), method=method,
      model=canvas.MaskedModel(lm, toys.MASK, **fields), params=params,
      length=12, block=4, sampling=dj.Sampling(0.7), cache=cache, traced=True,
      canvases=given)


def _difference(result):
  """Returns how far confidences of the first block's forwards differ."""
  first, second = (out.trace[0][:, :, :4] for out in result)
  return np.abs(first - second)[:, :4].max()


@pytest.mark.cases(1)
@pytest.mark.parametrize("shifted", [False, True])
def test_a_cache_is_kept_and_exact_where_blocks_are_causal(network, shifted):
  """Prompts are read once; one row begins with its second block filled."""
  given = np.full((4, 12), toys.MASK)
  given[1, 4:8] = 2
  results = [_with_network(network, cache, given=given, block_causal=True,
                           shifted=shifted) for cache in (False, True)]
  np.testing.assert_array_equal(results[0].tokens, results[1].tokens)
  assert _difference(results) < 1e-4
  second = [out.trace[0][np.array([0, 2, 3]), 4:8, 4:8] for out in results]
  np.testing.assert_allclose(*second, atol=1e-4)
  assert results[0].whole_forwards.tolist() == [12, 8, 12, 12]
  assert results[1].whole_forwards.tolist() == [1] * 4


@pytest.mark.parametrize("shifted", [False, True])
def test_drafts_with_a_kept_cache_lose_nothing(network, shifted):
  """FreeDave, token for token, in fewer forwards; not beyond a block."""
  run = functools.partial(_with_network, network, block_causal=True,
                          shifted=shifted)
  slow = run(False)
  fast = run(True, canvas.methods.free_dave(1, 4))
  np.testing.assert_array_equal(fast.tokens, slow.tokens)
  np.testing.assert_array_equal(fast.steps, slow.steps)
  assert (np.asarray(fast.forwards) < np.asarray(slow.forwards)).all()
  # At least one forward a block.
  assert (np.asarray(fast.forwards) >= 3).all()


def test_control_a_cache_is_not_exact_where_all_is_seen(network):
  assert _difference([_with_network(network, cache)
                      for cache in (False, True)]) > 1e-3


def test_bidirectional_logits_see_what_follows(network):
  lm, params = network
  tokens = jnp.array([[1, 2, 3, 4], [1, 2, 3, 5]])
  logits = transformer.bidirectional_logits(lm, params, tokens)
  assert np.abs(logits[0, 0] - logits[1, 0]).max() > 1e-3
  causal = transformer.causal_logits(lm, params, tokens)
  np.testing.assert_allclose(causal[0, 0], causal[1, 0], atol=1e-6)


@pytest.mark.parametrize("function, expected", [
    (confidence.probability, [0.25, 0.125]), (confidence.largest, [0.5, 0.5]),
    (confidence.margin, [0.25, 0.125]),
    # Of 1.5 bits and of 1.406 bits, where 2 are the most.
    (confidence.certainty, [0.25, 0.297])])
def test_confidences(function, expected):
  probs = jnp.array([[.5, .25, .25, 0], [.5, .125, .375, 0]])
  actual = function(jnp.log(probs), jnp.array([1, 1]))
  np.testing.assert_allclose(actual, expected, atol=1e-3)


EXAMPLES = [getattr(canvas.methods, name)(**sizes) for name, found in
            canvas.methods.example_arguments().items() for sizes in found]


@pytest.mark.cases(6)
@pytest.mark.parametrize("setting", [
    lambda: jax.enable_x64(True),
    lambda: jax.numpy_dtype_promotion("strict")], ids=["x64", "strict"])
@pytest.mark.parametrize("method", EXAMPLES, ids=lambda m: m.name)
def test_types_under_other_settings_of_jax(network, method, setting):
  lm, params = network
  filtered = canvas.filters.init(jax.random.key(0), 4)

  def trace():
    return jax.eval_shape(lambda key: canvas.generate(
        key, *toys.prompts(), method=method, params=params, length=8, block=4,
        model=canvas.MaskedModel(lm, toys.MASK), sampling=dj.Sampling(0.7),
        eos_id=toys.EOS, cache=method.drafts == 1, traced=True,
        method_params=filtered if method.needs_params else None),
                          jax.random.key(0))

  expected = trace()
  with setting():
    assert trace() == expected


_fill = functools.partial(toys.fill, STATIC(1))


def test_places_that_are_given_are_kept():
  given = np.full((4, 8), toys.MASK)
  given[:, 5] = 3
  out = _fill(canvases=given, eos_id=None)
  assert (out.tokens[:, 5] == 3).all() and (out.filled_at[:, 5] == -1).all()
  assert (out.tokens != toys.MASK).all()
  assert out.forwards.tolist() == [7] * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_holds_at_all_temperatures(temperature):
  allowed = np.arange(toys.MODEL.language_model.vocab_size) == 2
  out = _fill(sampling=dj.Sampling(temperature, token_mask=allowed),
              eos_id=None)
  assert (out.tokens == 2).all()


def test_keys_of_hardware_are_of_one_row_each():
  prompts, lengths = toys.prompts()
  run = lambda keys, rows: _fill(
      1.0, key=keys, prompts=prompts[rows], prompt_lengths=lengths[rows],
      eos_id=None)
  keys = jax.random.split(jax.random.key(3, impl="rbg"), len(prompts))
  last = slice(len(prompts) - 1, None)
  np.testing.assert_array_equal(run(keys[last], last).tokens[0],
                                run(keys, slice(None)).tokens[-1])


def test_an_end_of_text_ends_a_row():
  given = np.full((4, 8), toys.MASK)
  given[:2, 2] = toys.EOS
  out = _fill(canvases=given)
  assert (out.tokens[:2, 2:] == toys.EOS).all()
  assert (out.lengths[:2] <= 3).all() and (out.forwards[:2] <= 3).all()


def test_learn2pd_fills_what_its_filter_is_sure_of():
  method = canvas.methods.learn2pd(0.5)
  params = jax.tree.map(jnp.zeros_like, canvas.filters.init(
      jax.random.key(0), 4))
  sure = {**params, "out_bias": jnp.array([9., -9., 9., -9.])}
  out = toys.fill(method, method_params=sure, eos_id=5)
  # The first and the third place at once, with the surest of the others.
  assert (out.filled_at[:, [0, 2]] == 0).all()
  none = toys.fill(method, method_params={**params,
                                          "out_bias": jnp.full(4, -9.)})
  base = _fill()
  np.testing.assert_array_equal(none.tokens, base.tokens)


@pytest.mark.parametrize("arguments, message", [
    (dict(block=3), "block=3 does not divide length=8"),
    (dict(length=0, block=1), "length=0: a positive integer"),
    (dict(eos_id=9), "eos_id=9: 0 to 6"),
    (dict(method=canvas.methods.learn2pd()), "has parameters"),
    (dict(method_params=()), "has no parameters"),
    (dict(method=canvas.methods.free_dave(1, 2), cache=True),
     "block_causal=True alone; cache=False"),
    (dict(method=None), "canvas.Method is needed"),
    (dict(key=0), "key=0: a random key is needed"),
    (dict(prompts=np.full((4, 5), 9)), r"prompts\[0, 0\]=9: 0 to 6"),
    (dict(canvases=np.zeros((4, 7), int)), r"\(4, 8\) is needed"),
])
def test_errors_name_the_argument(arguments, message):
  with pytest.raises(ValueError, match=message):
    toys.fill(**{"method": STATIC(1), **arguments})


@pytest.mark.parametrize("make, message", [
    (lambda: STATIC(0), "tokens=0"),
    (lambda: canvas.methods.threshold(1.5), "least=1.5"),
    (lambda: canvas.methods.factor(0.0), "bound=0.0"),
    (lambda: canvas.methods.local_leap(0.5, 0.6), "least=0.6"),
    (lambda: canvas.methods.free_dave(1, 0), "drafts=0"),
])
def test_sizes_are_checked(make, message):
  with pytest.raises(ValueError, match=message):
    make()
