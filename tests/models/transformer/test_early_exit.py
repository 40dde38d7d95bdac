"""The first layers of a decoder as a drafter with the parameters of it all."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.testing import conformance
from models import transformer
from support import tiny_models as tiny

LLAMA = dataclasses.replace(tiny.LLAMA, num_layers=3)
# Every third layer attends to everything: the first two are narrow.
GEMMA = dataclasses.replace(tiny.GEMMA, num_layers=3, full_every=3)


def logits(lm, params):
  tokens = jnp.asarray(tiny.PROMPTS)
  return jax.jit(functools.partial(transformer.causal_logits, lm))(params,
                                                                   tokens)


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma"])
@pytest.mark.parametrize("scan", [False, True])
def test_logits_are_those_of_a_decoder_of_these_layers(config, scan):
  """Control: not those of all layers."""
  whole = tiny.random_model(config)
  params = {**whole.params, "layers": {
      name: whole.params["layers"][name] for name in ("layer_0", "layer_1")}}
  expected = logits(transformer.language_model(
      transformer.first_layers(config, 2)), params)
  given = transformer.stack_layers(whole.params) if scan else whole.params
  lm = transformer.early_exit(dataclasses.replace(config, scan_layers=scan), 2)
  actual = logits(lm, given)
  np.testing.assert_allclose(actual, expected, atol=1e-4)
  assert np.abs(actual - logits(whole.lm, whole.params)).max() > 0.1


def test_scanned_layers_keep_the_contract():
  config = dataclasses.replace(LLAMA, scan_layers=True)
  target = tiny.random_model(config)
  lm = transformer.early_exit(config, 2)
  assert lm is transformer.early_exit(config, 2)
  conformance.check_model(lm, target.params)


def test_scanned_parameters_are_not_copied():
  """No operation makes an array of the kernels of two layers.

  Control: a decoder of two layers that is given a slice of the parameters.
  """
  config = dataclasses.replace(LLAMA, scan_layers=True)
  params = transformer.abstract_params(config)
  sizes = {(2, *x.shape[1:]) for x in jax.tree.leaves(params["layers"])}

  def made(lm, take):
    program = jax.make_jaxpr(lambda params, tokens: transformer.causal_logits(
        lm, {**params, "layers": jax.tree.map(take, params["layers"])},
        tokens))(params, jnp.zeros((1, 4), jnp.int32))
    return {v.aval.shape for equation in program.eqns for v in equation.outvars}

  assert not made(transformer.early_exit(config, 2), lambda x: x) & sizes
  short = transformer.language_model(transformer.first_layers(config, 2))
  assert made(short, lambda x: x[:2]) >= sizes


@pytest.mark.parametrize("config, num_layers, message", [
    (LLAMA, 0, "num_layers=0: an early exit needs 1 to 2 of the target's 3 la"),
    (LLAMA, 3, "num_layers=3: "), (LLAMA, 1.5, "num_layers=1.5: "),
    (LLAMA, True, "num_layers=True: "),
    (None, 1, "config is of type NoneType: early exit needs the transformer.C")
])
def test_layers_that_cannot_be(config, num_layers, message):
  with pytest.raises(ValueError, match=message):
    transformer.early_exit(config, num_layers)
