"""Prefill in chunks: the same caches, and what the compiler makes of it."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.runtime import cache as cache_lib, prefill
from models import transformer
from support import tiny_models as tiny

ROWS, CHUNK, SLOTS = 5, 4, 32
# Of prompts of 12 tokens 11 are cached, in three chunks, the last of which ends
# after them; of 9 tokens 8, in two that are full.
CASES = {
    "scanned": (12, dataclasses.replace(tiny.LLAMA, scan_layers=True)),
    "full chunks": (9, tiny.LLAMA),
    "window": (12, dataclasses.replace(tiny.LLAMA, window=3)),
    "window of two chunks": (12, dataclasses.replace(tiny.LLAMA, window=6)),
    "opt": (12, dataclasses.replace(tiny.OPT, max_length=SLOTS))}


def fill(model, chunk, prompts, lengths):
  return prefill.prefill(SLOTS, chunk, model.lm, model.params,
                         prompts=jnp.asarray(prompts),
                         lengths=jnp.asarray(lengths, jnp.int32))


def check_same(actual, expected):
  """Asserts that what counts of two caches is the same."""
  np.testing.assert_array_equal(actual.length, expected.length)
  filled = np.arange(SLOTS) < np.asarray(expected.length)[:, None]
  for name, axis in (("keys", -1), ("values", -2)):
    for a, b in zip(getattr(actual, name), getattr(expected, name)):
      a, b = (np.moveaxis(np.asarray(x), axis, -1) for x in (a, b))
      mask = filled[:, None, None]
      assert np.isfinite(a).all()
      np.testing.assert_allclose(np.where(mask, a, 0), np.where(mask, b, 0),
                                 rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_caches_are_those_of_one_block(case):
  width, config = CASES[case]
  model = tiny.random_model(config)
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, tiny.LLAMA.vocab_size, (ROWS, width), np.int32)
  # Ends on a border of chunks and on both sides of it, no token, all of them;
  # then rows that leave whole chunks empty; then nothing at all.
  for lengths in ([1, CHUNK, CHUNK + 1, CHUNK + 2, width], [3, 1, 2, 3, 2],
                  [1] * ROWS):
    check_same(fill(model, CHUNK, prompts, lengths),
               fill(model, width, prompts, lengths))


@pytest.mark.parametrize("chunk", [1, 7, 33, 512])
def test_capacity_is_enough_for_prompt_and_chunks(monkeypatch, chunk):
  monkeypatch.setattr(prefill, "CHUNK", chunk)
  for width in range(1, 200):
    slots = prefill.capacity(width, 2)
    number, size = prefill.chunks(width - 1, chunk)
    assert size <= chunk and (number - 1) * size < max(width - 1, 1)
    assert slots >= max(width + 2, number * size)
    assert slots % 32 == 0 and slots < width + 2 + 32 + number


# Sizes that no other axis has.
VOCAB, PROGRAM_CHUNK = 211, 128
PROGRAM = transformer.Config(
    vocab_size=VOCAB, dim=16, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=8, hidden_dim=24, max_length=4096)


def compiled(width, chunk=PROGRAM_CHUNK):
  """The optimised program of two rows; caches have 32 slots more."""
  model = transformer.language_model(PROGRAM)
  params = transformer.abstract_params(PROGRAM)
  return prefill.prefill.lower(
      width + 32, chunk, model, params,
      prompts=jax.ShapeDtypeStruct((2, width), jnp.int32),
      lengths=jax.ShapeDtypeStruct((2,), jnp.int32)).compile()


def copies(program, width):
  """Lines of the loop in which keys or values of a cache are copied."""
  sizes = f"8,{width + 32}|{width + 32},8"
  # The entry comes last; there zeros are made a buffer for each layer.
  return [line for line in program.as_text().split("ENTRY")[0].splitlines()
          if re.search(rf"= f32\[2,1,({sizes})\]\S* copy\(", line)]


def temporaries(program):
  return program.memory_analysis().temp_size_in_bytes


def test_program_of_chunks(monkeypatch):
  """Scores are those of a chunk, no cache is copied, there are no logits."""
  short, long = compiled(1025), compiled(2049)
  # Four rows and heads, and as much again for the weights made of the scores.
  scores = 2 * 4 * PROGRAM_CHUNK * 2049 * 4
  assert temporaries(long) < 1.5 * scores
  assert temporaries(long) < 2.2 * temporaries(short)
  assert not copies(long, 2049)
  # But for the embedding nothing is as large as the vocabulary.
  assert set(re.findall(rf"\[(?:\d+,)*{VOCAB}(?:,\d+)*\]", long.as_text())) == {
      f"[{VOCAB},16]"}
  # Controls: one block, and a commit by XLA that does not wait.
  assert temporaries(compiled(1025, 1024)) > 4 * temporaries(short)
  monkeypatch.setenv("DECODING_JAX_KERNELS", "xla")
  monkeypatch.setattr(cache_lib, "await_block", lambda slots, block: slots)
  prefill.prefill.clear_cache()
  assert copies(compiled(2049), 2049)
