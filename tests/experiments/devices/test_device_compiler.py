"""Tests of `experiments.devices.device_compiler`."""

import types

import jax
import pytest

from experiments.app import launch
from experiments.devices import device_compiler


def test_what_is_too_large_is_told():
  def lower(lowering_platforms):
    raise jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Ran out of memory: 16.48G exceeds 15.75G.")

  with pytest.raises(launch.UserError, match="16.48G exceeds 15.75G. More of "
                     "--mesh=model:N"):
    device_compiler.compile_(types.SimpleNamespace(lower=lower))


def test_other_errors_stay():
  def lower(lowering_platforms):
    raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

  with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
    device_compiler.compile_(types.SimpleNamespace(lower=lower))
