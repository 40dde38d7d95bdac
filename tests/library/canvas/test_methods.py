"""Methods of filling a canvas, against plain Python."""

import numpy as np
import pytest

import decoding_jax as dj
from support import masked_models as toys


METHODS = dj.canvas.methods


def _threshold(result, least=0.5):
  return [i for c, i in result if c >= least] or toys.top(1)(result)


def _factor(result):
  order = sorted(result, key=lambda x: (-x[0], x[1]))
  count = max([n for n in range(1, len(order) + 1) if all(
      (k + 1) * (1 - order[k - 1][0]) < 1 for k in range(1, n + 1))] or [1])
  return [i for _, i in order[:count]]


def _local_leap(result):
  anchors = [i for c, i in result if c >= 0.6]
  near = [i for c, i in result if c >= 0.3 and any(
      abs(i - a) <= 1 for a in anchors)]
  return sorted({*anchors, *near}) or toys.top(1)(result)


CASES = {
    "static": (METHODS.static(tokens=3), toys.top(3)),
    "threshold": (METHODS.threshold(least=0.5), _threshold),
    "factor": (METHODS.factor(bound=1.0), _factor),
    "local_leap": (METHODS.local_leap(anchor=0.6, least=0.3, radius=1),
                   _local_leap),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_python(name, temperature):
  method, rule = CASES[name]
  out = toys.fill(method, temperature)
  for row, (prompt, size) in enumerate(zip(*toys.prompts())):
    tokens, forwards = toys.plain(
        rule, toys.toy_params(), prompt[:size], 8, 4, temperature=temperature,
        key=toys.row_key(row))
    assert out.tokens[row].tolist() == tokens
    assert out.forwards[row] == forwards == out.steps[row]


@pytest.mark.parametrize("name", CASES)
def test_control_another_rule_differs(name):
  out = toys.fill(CASES[name][0])
  results = [toys.plain(toys.top(1), toys.toy_params(), prompt[:size], 8, 4)
             for prompt, size in zip(*toys.prompts())]
  assert [forwards for _, forwards in results] != out.forwards.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_free_dave_is_lossless_with_fewer_forwards(temperature):
  base = toys.fill(METHODS.static(tokens=1), temperature)
  out = toys.fill(METHODS.free_dave(tokens=1, drafts=3), temperature)
  np.testing.assert_array_equal(out.tokens, base.tokens)
  np.testing.assert_array_equal(out.steps, base.steps)
  assert (out.forwards <= base.forwards).all()
  assert out.forwards.sum() < base.forwards.sum()


@pytest.mark.parametrize("method, drafts", [
    (METHODS.threshold(least=0.5), 2), (METHODS.static(tokens=2), 1)])
def test_free_dave_of_another_method_and_of_one_draft(method, drafts):
  base = toys.fill(method)
  out = toys.fill(dj.canvas.with_drafts(method, drafts))
  np.testing.assert_array_equal(out.tokens, base.tokens)
  np.testing.assert_array_equal(out.steps, base.steps)
  if drafts == 1:
    np.testing.assert_array_equal(out.forwards, base.forwards)
