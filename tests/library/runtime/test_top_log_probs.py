"""The most probable tokens at each position, by a forward without a cache."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.types import PAD
from support import tiny_models as tiny
from support.example_methods import each

K = 3
TREE = dj.methods.rsd_s(3, 2)


def generate(method=TREE, generate_=tiny.generate, **kwargs):
  # They do not follow the settings of sampling.
  return generate_(method, tiny.llama_models(), eos_id=3,
                   sampling=dj.Sampling(1.4, top_k=6),
                   **{"top_log_probs": K, **kwargs})


def check(out):
  """Asserts ranks and values at each token, and PAD and 0 elsewhere."""
  out = jax.tree.map(np.asarray, out)
  log_probs = tiny.log_probs(tiny.llama_models().target, out.tokens)
  order = np.arange(out.tokens.shape[1])
  written = (order >= tiny.LENGTHS[:, None]) & (order < out.lengths[:, None])
  assert out.top_tokens.dtype == np.int32 and written.sum() > 8
  assert (out.top_tokens[~written] == PAD).all()
  assert (out.top_log_probs[~written] == 0).all()
  for row, column in np.argwhere(written):
    expected = log_probs[row, column - 1]
    tokens = out.top_tokens[row, column]
    np.testing.assert_array_equal(tokens, np.argsort(-expected)[:K])
    np.testing.assert_allclose(out.top_log_probs[row, column], expected[tokens],
                               atol=1e-4)
    # By the same distribution as that of the token that was written.
    if (rank := np.flatnonzero(tokens == out.tokens[row, column])).size:
      np.testing.assert_allclose(out.top_log_probs[row, column, rank[0]],
                                 out.log_probs[row, column], atol=1e-5)


@each([TREE, dj.methods.autoregressive(), dj.methods.prompt_lookup(2)])
def test_of_methods(method):
  out = generate(method)
  check(out)
  plain = generate(method, top_log_probs=0)
  assert plain.top_tokens is plain.top_log_probs is None
  np.testing.assert_array_equal(out.tokens, plain.tokens)


@pytest.mark.parametrize("chunk", [None, pytest.param(
    0, marks=pytest.mark.long)])
def test_in_a_queue(chunk):
  check(generate(rows=2, prefill_chunk=chunk))


def test_step_by_step():
  run = dj.begin(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS, method=TREE,
                 max_new_tokens=tiny.NEW, sampling=dj.Sampling(1.4, top_k=6),
                 eos_id=3, top_log_probs=K,
                 **tiny.arguments(tiny.llama_models()))
  while not run.done.all():
    run, _ = dj.step(run)
  out = dj.result(run)
  check(out)
  np.testing.assert_array_equal(out.top_tokens, generate().top_tokens)


@pytest.mark.parametrize("method, count, message", [
    (TREE, -1, "top_log_probs=-1: an integer from 0 to 13"),
    (TREE, 14, "top_log_probs=14: an integer from 0 to 13"),
    (TREE, True, "top_log_probs=True: an integer"),
    (dj.methods.pearl(2), 2, r"top_log_probs=2: method pearl\(2\) drafts no")])
def test_what_is_refused(method, count, message):
  with pytest.raises(ValueError, match=message):
    generate(method, top_log_probs=count)
