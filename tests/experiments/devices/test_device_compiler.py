"""Tests of `experiments.devices.device_compiler`."""

import types

import jax
import pytest

from experiments.app import launch
from experiments.devices import device_compiler


@pytest.mark.parametrize("error, message, expected", [
    ("RESOURCE_EXHAUSTED: Ran out of memory: 16.48G exceeds 15.75G.",
     "16.48G exceeds 15.75G. More of --mesh=model:N", launch.UserError),
    ("INTERNAL: a bug", "a bug", jax.errors.JaxRuntimeError)])
def test_what_is_too_large_is_told_and_other_errors_stay(error, message,
                                                         expected):
  def lower(lowering_platforms):
    raise jax.errors.JaxRuntimeError(error)

  with pytest.raises(expected, match=message):
    device_compiler.compile_(types.SimpleNamespace(lower=lower))
