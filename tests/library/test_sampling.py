"""Distributions against sorts in float64; draws against enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import sampling
from decoding_jax.sampling import Sampling
from decoding_jax.testing import exactness
from support import helpers

V, B = 11, 3


def oracle(logits, temperature=1.0, top_k=0, top_p=1.0, mask=None, min_p=0.0,
           typical_p=1.0):
  """One row in float64, by sorting; ties with the last one stay."""
  logits = np.where(True if mask is None else mask,
                    np.asarray(logits, np.float64), -np.inf)
  if temperature == 0:
    return np.eye(len(logits))[np.argmax(logits)]
  return helpers.warped(np.exp(logits - logits.max())[None], temperature, top_k,
                        top_p, None, min_p, typical_p)[0]


def distributions(logits, **kwargs):
  """`log_probs` of `[B, V]` logits, by the way of a checked `Sampling`."""
  logits = jnp.asarray(logits)
  warper = sampling.make_warper(Sampling(**kwargs), *logits.shape)
  log_probs = jax.vmap(sampling.log_probs)(warper, logits)
  assert log_probs.dtype == jnp.float32
  return np.exp(np.asarray(log_probs, np.float64))


def random_logits(rows=B, size=V, seed=0):
  return np.random.default_rng(seed).normal(0, 2, (rows, size)).astype(
      np.float32)


MASK = np.arange(V) % 3 != 1
CASES = [
    dict(), dict(temperature=0.3), dict(temperature=7.0), dict(temperature=0),
    dict(temperature=0.0), dict(top_k=1), dict(top_k=4), dict(top_k=V),
    dict(top_k=V + 5), dict(top_p=1e-6), dict(top_p=0.5), dict(top_p=0.93),
    dict(top_p=0.99999), dict(min_p=1.0), dict(min_p=0.3), dict(min_p=1e-3),
    dict(temperature=0, min_p=1.0), dict(mask=MASK),
    dict(typical_p=1e-6), dict(typical_p=0.2), dict(typical_p=0.9),
    dict(typical_p=0.99999), dict(temperature=0, typical_p=0.5),
    dict(temperature=3.0, typical_p=0.5), dict(top_k=4, typical_p=0.6),
    dict(top_p=0.8, min_p=0.05, typical_p=0.7), dict(typical_p=0.6, mask=MASK),
    dict(temperature=0, mask=MASK),
    # The order of the parts matters in these.
    dict(temperature=0.4, top_p=0.8), dict(temperature=3.0, top_p=0.8),
    dict(top_k=3, top_p=0.8), dict(top_k=3, mask=MASK),
    dict(temperature=1.7, top_k=5, top_p=0.7, mask=MASK),
    dict(temperature=0.3, min_p=0.05), dict(temperature=3.0, min_p=0.05),
    dict(temperature=3.0, top_p=0.8, min_p=0.5), dict(min_p=0.1, mask=MASK),
    dict(temperature=1.7, top_k=5, top_p=0.9, min_p=0.2, mask=MASK),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: ",".join(c) or "plain")
def test_distribution_equals_a_full_sort(case):
  logits = random_logits()
  expected = [oracle(row, **case) for row in logits]
  arguments = {("token_mask" if k == "mask" else k): v for k, v in case.items()}
  actual = distributions(logits, **arguments)
  np.testing.assert_allclose(actual, expected, atol=2e-6)
  np.testing.assert_array_equal(actual > 0, np.array(expected) > 0)


def test_each_row_has_its_own_temperature_top_p_min_p_and_mask():
  logits = random_logits()
  temperature, top_p = np.array([0.5, 1.0, 2.0]), np.array([0.9, 0.2, 1.0])
  min_p = np.array([0.0, 0.2, 0.6])
  mask = np.random.default_rng(1).random((B, V)) < 0.6
  actual = distributions(logits, temperature=temperature, top_p=top_p,
                         token_mask=mask, min_p=min_p)
  expected = [oracle(*row[:2], 0, *row[2:])
              for row in zip(logits, temperature, top_p, mask, min_p)]
  np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_leading_axes_are_rows_of_the_same_distribution():
  logits = random_logits(6).reshape(1, 2, 3, V)
  warper = sampling.make_warper(Sampling(temperature=0.5, top_k=6, top_p=0.9),
                                1, V)
  actual = jax.vmap(sampling.log_probs)(warper, jnp.asarray(logits))
  expected = [oracle(row, 0.5, 6, 0.9) for row in logits.reshape(6, V)]
  np.testing.assert_allclose(np.exp(actual).reshape(6, V), expected, atol=2e-6)


def test_ties_with_the_last_one_are_kept():
  logits = np.array([[3.0, 1.0, 1.0, 1.0, 0.0]], np.float32)
  assert (distributions(logits, top_k=2) > 0).tolist() == [[1, 1, 1, 1, 0]]
  assert (distributions(logits, top_k=1) > 0).tolist() == [[1, 0, 0, 0, 0]]
  # 0.692, then three times 0.094: the first of them is needed.
  assert (distributions(logits, top_p=0.7) > 0).tolist() == [[1, 1, 1, 1, 0]]
  assert (distributions(logits, top_p=0.6) > 0).tolist() == [[1, 0, 0, 0, 0]]
  assert (distributions(logits, min_p=0.1) > 0).tolist() == [[1, 1, 1, 1, 0]]
  equal = np.zeros((1, 5), np.float32)
  for case in (dict(top_k=2, top_p=0.1), dict(min_p=1.0), dict(typical_p=0.1)):
    np.testing.assert_allclose(distributions(equal, **case), 0.2, atol=1e-7)
  # At temperature 0 the first of equals is certain.
  logits = np.array([[1, 5, 5, 0], [2, 2, 2, 2], [-np.inf, -9, -np.inf, -np.inf]
                     ], np.float32)
  np.testing.assert_array_equal(distributions(logits, temperature=0),
                                np.eye(4)[[1, 0, 1]])


@pytest.mark.parametrize("case", [
    dict(), dict(temperature=0.1), dict(top_k=3), dict(top_p=0.999),
    dict(min_p=1e-30), dict(min_p=np.zeros(2)), dict(typical_p=0.999),
    dict(temperature=2.0, top_k=1, top_p=0.2), dict(temperature=0)])
def test_tokens_of_no_mass_stay_out(case):
  logits = np.array([[-np.inf, 2.0, -np.inf, 1.0], [-np.inf] * 3 + [-30.0]],
                    np.float32)
  result = distributions(logits, **case)
  case.update({name: x[0] for name, x in case.items() if np.ndim(x)})
  np.testing.assert_allclose(result, [oracle(row, **case) for row in logits],
                             atol=2e-6)
  assert (result[np.isneginf(logits)] == 0).all()


def test_half_precision_and_large_logits():
  logits = jnp.asarray(random_logits(), jnp.bfloat16)
  expected = [oracle(np.asarray(row, np.float32), 0.7) for row in logits]
  np.testing.assert_allclose(distributions(logits, temperature=0.7), expected,
                             atol=2e-6)
  logits = np.array([[3e38, 0.0, -3e38], [-3e38, -3e38, -3e38]], np.float32)
  np.testing.assert_allclose(distributions(logits), [[1, 0, 0], [1 / 3] * 3],
                             atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-30, 1e-10, 1e-8])
def test_at_low_temperatures_the_most_probable_token_is_certain(temperature):
  """In a program, which may round a quotient and a difference once."""
  logits = 10 * random_logits()
  warper = sampling.make_warper(Sampling(temperature=temperature), B, V)
  result = jax.jit(jax.vmap(sampling.log_probs))(warper, jnp.asarray(logits))
  np.testing.assert_array_equal(np.exp(result), np.eye(V)[logits.argmax(1)])


def test_what_is_traced_is_kept_in_its_range():
  """Nobody can refuse it there."""
  logits = random_logits()
  probs = jax.jit(lambda *x: jax.vmap(sampling.log_probs)(sampling.make_warper(
      Sampling(x[0], top_p=x[1], min_p=x[2]), B, V), logits))
  for case in ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, np.zeros(B), -1.0),
               (1.0, 1.0, 1.5)):
    np.testing.assert_array_equal(np.exp(probs(*case)),
                                  np.eye(V)[logits.argmax(1)])
  np.testing.assert_allclose(np.exp(probs(1.0, 1.0, -1.0)),
                             [oracle(row) for row in logits], atol=2e-6)


def distribution_of_transformers(logits, **settings):
  """The distribution that `generate` of transformers would sample from."""
  torch = pytest.importorskip("torch", reason="pip install -e '.[parity]'")
  transformers = pytest.importorskip("transformers")
  config = transformers.GenerationConfig(do_sample=True, **settings)
  tiny = transformers.GPT2Config(vocab_size=V, n_embd=2, n_layer=1, n_head=1)
  model = transformers.GPT2LMHeadModel(tiny)
  # pylint: disable-next=protected-access
  processors = model._get_logits_processor(config)
  scores = processors(None, torch.tensor(logits, dtype=torch.float64))
  return torch.softmax(scores, -1).numpy()


@pytest.mark.long
@pytest.mark.parametrize("case", [
    dict(min_p=0.2), dict(min_p=1.0), dict(temperature=0.4, min_p=0.05),
    dict(temperature=2.5, min_p=0.3), dict(top_k=4, min_p=0.1),
    dict(temperature=2.5, top_p=0.7, min_p=0.3),
    dict(temperature=1.5, top_k=7, top_p=0.9, min_p=0.15),
    dict(typical_p=0.3), dict(temperature=2.5, typical_p=0.9),
    dict(top_k=7, min_p=0.05, typical_p=0.6)], ids=str)
def test_distribution_equals_that_of_transformers(case):
  logits = random_logits(20)
  # Where nothing is given, its top-k is 50.
  expected = distribution_of_transformers(logits, **{"top_k": 0, **case})
  actual = distributions(logits, **case)
  np.testing.assert_allclose(actual, expected, atol=2e-6)
  np.testing.assert_array_equal(actual > 0, expected > 0)
  without = distributions(logits, **{**case, "min_p": 0.0, "typical_p": 1.0})
  assert (actual > 0).sum() < (without > 0).sum()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_of_the_mask_is_left_the_mask_decides(temperature):
  """As where a processor forbids its tokens; control: other rows."""
  logits = random_logits()
  logits[0] = np.where(MASK, -np.inf, logits[0])
  probs = np.exp(jax.vmap(sampling.log_probs)(
      sampling.make_warper(Sampling(temperature, token_mask=MASK), B, V),
      jnp.asarray(logits)))
  first = np.eye(V)[np.argmax(MASK)] if not temperature else MASK / sum(MASK)
  np.testing.assert_allclose(probs[0], first, rtol=1e-6)
  if temperature:
    np.testing.assert_allclose(probs[1], oracle(logits[1], mask=MASK),
                               atol=2e-6)


def test_what_is_off_is_static():
  warper = sampling.make_warper(Sampling(), B, V)
  assert (warper.top_p, warper.min_p, warper.token_mask, warper.top_k) == (
      None, None, None, 0)
  assert not warper.greedy
  assert sampling.make_warper(Sampling(top_k=V), B, V).top_k == 0
  assert sampling.make_warper(Sampling(temperature=np.float64(0)), B, V).greedy
  rows = sampling.make_warper(Sampling(top_p=np.ones(B), min_p=np.zeros(B)), B,
                              V)
  assert rows.top_p.shape == rows.min_p.shape == (B,)


def test_untempered_keeps_the_mask_alone():
  warper = sampling.make_warper(Sampling(temperature=0, top_k=2, top_p=0.3,
                                         token_mask=MASK, min_p=0.5), B, V)
  logits = random_logits()
  result = jax.vmap(sampling.log_probs)(sampling.without_temperature(warper),
                                        jnp.asarray(logits))
  np.testing.assert_allclose(np.exp(result),
                             [oracle(row, mask=MASK) for row in logits],
                             atol=2e-6)


@pytest.mark.parametrize("probs, top_p, threshold", [
    ([0.5, 0.25, 0.125, 0.125], 0.5, 0.5),
    ([0.5, 0.25, 0.125, 0.125], 0.50001, 0.25),
    ([0.5, 0.25, 0.125, 0.125], 0.75, 0.25),
    ([0.5, 0.25, 0.125, 0.125], 0.76, 0.125),
    ([0.125, 0.5, 0.125, 0.25], 1.0, 0.125),
    ([0.0, 0.5, 0.5, 0.0], 1.0, 0.5),
    ([1.0, 0.0], 1.0, 1.0),
    ([1.0], 0.1, 1.0),
    ([1.0, 2.0**-100], 1.0, 1.0),
    # Rounding has left the distribution short of 1: everything is kept.
    ([0.5, 0.25, 0.0], 1.0, 0.0),
])
def test_nucleus_threshold_is_exact(probs, top_p, threshold):
  result = sampling.nucleus_threshold(jnp.asarray(probs, jnp.float32),
                                      jnp.float32(top_p))
  assert result.tolist() == [threshold]


def test_nucleus_threshold_is_one_of_the_probabilities():
  probs = jax.nn.softmax(jnp.asarray(random_logits(8, 500)))
  values = np.asarray(sampling.nucleus_threshold(probs, jnp.float32(0.8)))
  for row, threshold in zip(np.asarray(probs), values):
    ordered = np.sort(row)[::-1].astype(np.float64)
    kept = np.searchsorted(np.cumsum(ordered), 0.8) + 1
    assert threshold == np.float32(ordered[kept - 1])


PROBS = np.array([0.45, 0.0, 0.3, 0.2, 0.05])


def draw(key, probs, k, rows):
  keys = jax.random.split(jax.random.key(key), rows)
  log_probs = jnp.log(jnp.asarray(probs, jnp.float32))
  draws = jax.jit(jax.vmap(
      lambda key: sampling.gumbel_top_k(key, log_probs, k)))(keys)
  return tuple(np.asarray(x) for x in draws)


def test_gumbel_top_k_draws_without_replacement():
  scores, tokens = draw(0, PROBS, 2, 50_000)
  expected = np.zeros((len(PROBS),) * 2)
  for i, j in itertools.permutations(np.flatnonzero(PROBS), 2):
    expected[i, j] = PROBS[i] * PROBS[j] / (1 - PROBS[i])
  counts = exactness.count(tokens, len(PROBS))
  assert exactness.p_value(counts, expected) > exactness.MIN_P_VALUE
  # Negative control: sorted siblings have another distribution.
  sorted_counts = exactness.count(np.sort(tokens, axis=1), len(PROBS))
  assert (exactness.p_value(sorted_counts, expected)
          < helpers.MAX_P_VALUE_OF_CONTROL)
  assert (scores[:, 0] > scores[:, 1]).all()


def test_gumbel_top_k_marks_tokens_of_no_mass():
  scores, tokens = draw(1, PROBS, len(PROBS), 100)
  assert (np.sort(tokens) == np.arange(len(PROBS))).all()
  np.testing.assert_array_equal(np.isneginf(scores), tokens == 1)
  assert (tokens[:, -1] == 1).all()
  scores, tokens = draw(2, np.eye(4)[2], 2, 100)
  assert (tokens[:, 0] == 2).all()
  assert np.isfinite(scores[:, 0]).all() and np.isneginf(scores[:, 1]).all()


def truncate(perturbed, bound):
  perturbed = jnp.asarray(perturbed, jnp.float32)
  return np.asarray(sampling.truncate_gumbel(
      perturbed, perturbed.max(-1, keepdims=True), jnp.float32([[bound]])))


@pytest.mark.parametrize("bound", [-20.0, -1.0, 0.0, 3.0, 15.0])
def test_truncate_gumbel_equals_the_inverse_of_its_distribution(bound):
  values = np.random.default_rng(0).gumbel(0, 3, (6, 5))
  peak = values.max(axis=1, keepdims=True)
  # Exact where the bound is no more than moderately far away.
  with np.errstate(divide="ignore"):
    expected = -np.log(np.exp(-bound) - np.exp(-peak) + np.exp(-values))
  actual = truncate(values, bound)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bound", [-50.0, 0.0, 50.0])
def test_truncated_gumbels_have_their_maximum_at_the_bound(bound):
  values = np.random.default_rng(1).gumbel(0, 10, (20, 6)).astype(np.float32)
  result = truncate(values, bound)
  np.testing.assert_array_equal(result.max(axis=1), np.full(20, bound))
  # In the order of the values; far below their peak, rounding makes ties.
  ordered = np.take_along_axis(result, np.argsort(values), axis=1)
  assert (np.diff(ordered) >= 0).all()
  assert (ordered[:, -1] == bound).all()


def test_truncated_families_without_mass():
  nothing, inf = np.full((1, 3), -np.inf), np.inf
  assert (truncate(nothing, 0.0) == -inf).all()
  assert (truncate(nothing, -inf) == -inf).all()
  assert (truncate([[1.0, 0.0, 2.0]], -inf) == -inf).all()
  np.testing.assert_array_equal(truncate([[1.0, -inf, -inf]], -2.0),
                                [[-2.0, -inf, -inf]])


def test_residual():
  """Normalised, however little mass it has; of none, the distribution."""
  target = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
  draft = np.array([0.2, 0.5, 0.1, 0.2], np.float32)
  np.testing.assert_allclose(sampling.residual(target, draft),
                             [0.75, 0, 0.25, 0], atol=1e-6)
  for shift in (0.0, 1e-13):
    probs = np.array([0.5, 0.5, shift], np.float32)
    found = sampling.residual(probs, np.array([0.5, 0.5, 0.0], np.float32))
    np.testing.assert_array_equal(found, probs)
  target = np.array([0.5, 0.5, 1e-10], np.float32)
  result = sampling.residual(target, np.array([0.5, 0.5, 0.0], np.float32))
  np.testing.assert_allclose(result, [0, 0, 1], atol=1e-6)


@pytest.mark.parametrize("size,k", [
    (1024, 1), (2048, 2), (2047, 2), (2049, 2), (3333, 3), (1023, 1), (7, 7)])
def test_top_k_of_any_size(size, k):
  """Whole numbers, so that many are equal: the first ones come first."""
  rng = np.random.default_rng(size)
  values = rng.integers(-size // 8, 0, (4, size)).astype(np.float32)
  values[1, ::3] = -np.inf
  values[2] = -np.inf
  values[3, -1] = 1
  actual, places = sampling.top_k(jnp.asarray(values), k)
  expected = np.argsort(-values, axis=-1, kind="stable")[:, :k]
  np.testing.assert_array_equal(places, expected)
  np.testing.assert_array_equal(
      actual, np.take_along_axis(values, expected, axis=-1))


def test_equal_values_of_several_blocks_come_in_their_order():
  values = np.zeros(4096, np.float32)
  values[[4000, 300, 17]] = 2, 2, 1
  assert sampling.top_k(jnp.asarray(values), 4)[1].tolist() == [
      300, 4000, 17, 0]


def test_a_peaked_distribution_may_lose_its_most_probable_token():
  """Unlike with top-p: the entropy of 0.6 and eight times 0.05 is 1.50 nats."""
  probs = np.array([[0.6] + [0.05] * 8])
  # Surprises: 0.51, which is 0.99 away, and 3.00, which is 1.49 away.
  assert (distributions(np.log(probs), typical_p=0.5) > 0).tolist() == [
      [True] + [False] * 8]
  probs = np.array([[0.3, 0.3] + [0.1] * 4])
  # The entropy is 1.64: 0.44 from 1.20, 0.66 from 2.30.
  assert (distributions(np.log(probs), typical_p=0.5) > 0).tolist() == [
      [True, True] + [False] * 4]
  probs = np.array([[0.4] + [0.15] * 4])
  # The entropy is 1.50: 0.59 from 0.92, 0.39 from 1.90.
  assert (distributions(np.log(probs), typical_p=0.5) > 0).tolist() == [
      [False] + [True] * 4]


def test_typical_p_of_each_row():
  logits, typical_p = random_logits(), np.array([0.2, 0.6, 1.0])
  result = distributions(logits, typical_p=typical_p)
  np.testing.assert_allclose(
      result, [oracle(row, typical_p=p) for row, p in zip(logits, typical_p)],
      atol=2e-6)
  with pytest.raises(ValueError, match="sampling.typical_p=0.0: a number"):
    sampling.make_warper(Sampling(typical_p=0.0), B, V)


def test_a_mask_that_is_an_array_of_jax_inside_jit():
  mask = jnp.arange(V) > 1

  @jax.jit
  def run(logits):
    warper = sampling.make_warper(Sampling(token_mask=mask), 1, V)
    return jax.vmap(sampling.log_probs)(warper, logits)

  np.testing.assert_array_equal(run(jnp.zeros((1, V)))[0] > -jnp.inf, mask)
