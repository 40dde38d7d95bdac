"""What the compiler makes of a generation: read from the compiled program."""

import re

import jax
import jax.numpy as jnp

from decoding_jax import sampling
import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from models import transformer
from support import tiny_models as tiny

# A size that no other axis has.
VOCAB = 211
CONFIG = transformer.Config(
    vocab_size=VOCAB, dim=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=8, hidden_dim=32, max_length=64)


def compiled(method):
  """The optimised program of a generation with top-k, top-p and min-p."""
  model = transformer.language_model(CONFIG)
  params = tiny.init(jax.random.key(0), CONFIG)
  warper = sampling.make_warper(dj.Sampling(0.8, top_k=7, top_p=0.9, min_p=0.1),
                                2, VOCAB)
  keys = jax.random.split(jax.random.key(0), 2)
  caches = model.init_cache(2, 32), model.init_cache(2, 32)
  context = tiny.context(model, params, jnp.zeros((2, 5), jnp.int32),
                         jnp.full(2, 5), warper)
  return tiny.generate_lib._generate.lower(
      tree_decoder.decoder_of(method, False), 8, context, caches,
      keys).compile().as_text()


def sorts_vocabulary(program):
  return any(re.search(rf"\b{VOCAB}\b", line.split("metadata")[0])
             for line in program.splitlines()
             if re.search(r"\bsort\(", line))


def test_vocabulary_is_never_sorted():
  method = dj.methods.rsd_s(3, 2)
  program = compiled(method)
  assert f",{VOCAB}]" in program
  assert not sorts_vocabulary(program)
  assert "callback" not in program


def test_control_sliced_top_k_is_a_sort():
  """The trap that the library steps around, and the test must see."""
  def best(x):
    values, tokens = jax.lax.top_k(x, 3)
    return values[:, :1], values, tokens

  program = jax.jit(best).lower(jnp.zeros((2, VOCAB))).compile().as_text()
  assert sorts_vocabulary(program)
