"""The check of models that users have: ours pass, broken ones do not."""

import jax.numpy as jnp
import pytest

from decoding_jax.testing import conformance
from models import cacheless, tabular, transformer
from support import tiny_models as tiny

MODEL = tiny.random_model(tiny.LLAMA)
V = MODEL.lm.vocab_size


def plain(params, tokens):
  return transformer.causal_logits(MODEL.lm, params, tokens)


def flat(params, tokens):
  """Neither the tokens before one nor where it stands change anything."""
  return params[tokens]


STATELESS = cacheless.language_model(plain, V, MODEL.lm.max_length)


@pytest.mark.parametrize("lm", [MODEL.lm, STATELESS],
                         ids=["cached", "stateless"])
def test_models_conform(lm):
  conformance.check_model(lm, MODEL.params, plain)


def test_tables_conform():
  conformance.check_model(*tabular.TabularLM(jnp.eye(9)))


def altered(**changes):
  """The model, whose forward reads some of its arguments otherwise."""
  names = ("positions", "cache", "block", "slot", "mask")

  def forward(params, tokens, *arguments):
    given = dict(zip(names, arguments))
    given.update({name: f(given[name]) for name, f in changes.items()})
    return MODEL.lm.forward(params, tokens, *given.values())

  return MODEL.lm._replace(forward=forward)


def forgetful(params, tokens, positions, cache, block, slot, mask):
  """What a call leaves in the block is lost."""
  logits, _ = MODEL.lm.forward(params, tokens, positions, cache, block, slot,
                               mask)
  return logits, block


@pytest.mark.parametrize("lm, message", [
    (altered(positions=lambda x: x[:, :1] + jnp.arange(x.shape[1])[None]),
     r"forward of a tree: .* at node \d of depth \d are off by .*positions"),
    (altered(mask=jnp.ones_like), "forward of a tree: .* its mask names"),
    (altered(cache=lambda x: x.replace(length=jnp.full_like(
        x.length, x.length.max()))),
     r"forward of a tree: .*`cache.length` of its row"),
    (altered(slot=lambda x: 0 * x), "forward of level after level: .*`slot`"),
    (MODEL.lm._replace(forward=forgetful), "forward of a tree: "),
], ids=["positions", "mask", "length", "slot", "forgetful"])
def test_broken_models_are_told(lm, message):
  with pytest.raises(AssertionError, match=message):
    conformance.check_model(lm, MODEL.params, plain)


def test_another_function_is_told():
  with pytest.raises(AssertionError, match="forward of a tree"):
    conformance.check_model(
        *tabular.TabularLM(jnp.eye(9)),
        lambda params, tokens: flat(2 * jnp.eye(9)[::-1], tokens))


def test_wrong_vocabularies_and_short_models_are_told():
  lm, params = tabular.TabularLM(jnp.eye(9))
  with pytest.raises(ValueError, match="V=9 tokens are needed"):
    conformance.check_model(lm, params, lambda params, tokens: flat(
        jnp.ones((9, 5)), tokens))
  with pytest.raises(ValueError, match="max_length=12: at least 13"):
    conformance.check_model(lm._replace(max_length=12), params)
