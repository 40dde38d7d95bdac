"""The joint distribution of the first tokens, of methods and models at random.

Combinations of methods, drafters, processors, warps, types, ends and batches,
against enumeration in float64. By hand, as many as wanted:

  EXACTNESS_CASES=200 EXACTNESS_SEED=7 EXACTNESS_FIRST=0 \\
      pytest -n 0 -m long tests/library/test_random_cases.py

With `DECODING_JAX_KERNELS=xla` without native kernels; on 8 simulated devices
with `XLA_FLAGS=--xla_force_host_platform_device_count=8`. EXACTNESS_ROWS sets
how many texts a case has, and EXACTNESS_LOG a file that gets a line for each.
"""

import json
import os
import pathlib

import jax
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from support import example_methods, random_cases, random_methods

# Stated in advance: of ten thousand right cases one fails by chance.
MIN_P_VALUE = 1e-6
# Of what always runs.
FIXED_SEED = 20261126
CASES, SEED, FIRST, ROWS = (
    int(os.environ.get(f"EXACTNESS_{name}", default)) for name, default in (
        ("CASES", 12), ("SEED", FIXED_SEED), ("FIRST", 0), ("ROWS", 12_000)))
LOG = os.environ.get("EXACTNESS_LOG")


@pytest.fixture(autouse=True)
def few_programs(request):
  """Programs are dropped now and then; cases share small ones."""
  yield
  if getattr(request.node, "callspec", None) and (
      request.node.callspec.params["number"] % 10 == 9):
    jax.clear_caches()


@pytest.fixture
def without_native_kernels(monkeypatch):
  """Programs are traced with XLA's kernels."""
  jax.clear_caches()
  monkeypatch.setenv("DECODING_JAX_KERNELS", "xla")
  yield
  jax.clear_caches()


def tempered(expected):
  """Distributions that are slightly wrong: flatter over whole texts."""
  for probs in expected:
    total = sum(p**.8 for p in probs.values())
    yield {text: p**.8 / total for text, p in probs.items()}


def is_told_apart(actual, expected, wrong):
  """Tells whether chi-square shows which of two distributions is right."""
  for counts, probs, others in zip(actual, expected, wrong):
    total = sum(counts.values())
    distance = total * sum((probs[x] - others[x])**2 / others[x] for x in probs)
    if distance > 100 + 15 * len(probs)**.5:
      return True
  return False


def draw(seed, number, **kwargs):
  """Returns a case for the devices that there are."""
  return random_cases.draw(seed, number, on_mesh=jax.device_count() > 1,
                           **kwargs)


def p_value(case):
  """Returns that of texts of a case."""
  return random_cases.p_value(random_cases.counts(case, ROWS),
                              random_cases.distributions(case))


@pytest.mark.long
@pytest.mark.parametrize("number", range(FIRST, FIRST + CASES))
def test_texts_have_the_distribution_of_the_target(number):
  case = draw(SEED, number)
  actual = random_cases.counts(case, ROWS)
  expected = random_cases.distributions(case)
  wrong = list(tempered(expected))
  told = is_told_apart(actual, expected, wrong)
  right, control = (random_cases.p_value(actual, x) for x in (expected, wrong))
  if LOG:
    with pathlib.Path(LOG).open("a") as log:
      log.write(json.dumps({"p": right, "control": control, "told": told,
                            **json.loads(case.name)}) + "\n")
  assert right > MIN_P_VALUE, case.name
  assert control < MIN_P_VALUE or not told, case.name


@pytest.mark.long
@pytest.mark.usefixtures("without_native_kernels")
@pytest.mark.parametrize("number", [0, 12])
def test_texts_have_it_in_16_bits_without_native_kernels(number):
  """XLA rounds a tree in another way than a whole text.

  Where such logits did not count as equal, both would fail: by a token that
  top-k keeps in one of them alone, and by frequencies.
  """
  assert p_value(draw(FIXED_SEED, number, dtypes=("bfloat16",))) > MIN_P_VALUE


@pytest.mark.long
def test_control_wrong_positions_in_16_bits():
  case = draw(FIXED_SEED, 0, dtypes=("bfloat16",))
  target = case.models.target
  wrong = target._replace(forward=lambda params, tokens, positions, *rest: (
      target.forward(params, tokens, positions // 2, *rest)))
  assert p_value(case._replace(
      models=case.models._replace(target=wrong))) < MIN_P_VALUE


@pytest.mark.long
def test_control_most_probable_children_taken_for_samples():
  drafter = drafters.of_model(expanders.top_k((2, 2)))._replace(
      draws=dj.Draws.WITHOUT_REPLACEMENT)
  pair = dj.Pair(drafter, verifiers.recursive(replacement=False))
  case = draw(FIXED_SEED, 0)
  assert p_value(case._replace(
      method=dj.Method("wrong", pair, None))) < MIN_P_VALUE


def test_every_method_that_is_exact_is_drawn():
  exact = {name for name, methods in dj.methods.examples().items()
           if set(methods) & set(example_methods.PAIRS)}
  assert exact <= random_methods.NAMES
