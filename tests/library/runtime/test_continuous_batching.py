"""More prompts than rows: the same texts, fewer steps, caches in place."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import programs, sampling
import decoding_jax as dj
from decoding_jax.runtime import continuous_batching
from decoding_jax.speculation import tree_decoder
from decoding_jax.testing import exactness
from models import transformer
from support import helpers, small_heads, tiny_models as tiny
from support.helpers import check_same

PROMPTS, VOCAB, NEW = 9, 6, 8
METHOD, ROWS = dj.methods.rsd_s(2, 1), 8


def prompts(vocab_size):
  rng = np.random.default_rng(0)
  return (rng.integers(0, vocab_size, (PROMPTS, 5), np.int32),
          rng.integers(1, 6, PROMPTS, np.int32))


def test_texts_do_not_depend_on_the_rows():
  """Not on warps, constraints and ends that are a row's own either."""
  models = tiny.tables(*exactness.random_tables(VOCAB))
  tokens, lengths = prompts(VOCAB)
  mask = np.ones((PROMPTS, VOCAB), bool)
  mask[np.arange(PROMPTS), np.arange(PROMPTS) % 5] = False
  run = lambda rows: tiny.generate(
      METHOD, models, prompts=tokens, lengths=lengths, new=NEW, rows=rows,
      eos_id=5, reward=tiny.table_reward(), reward_params=2.0,
      constraints=np.random.default_rng(2).random((PROMPTS, tiny.STATES)),
      sampling=dj.Sampling(np.linspace(0.5, 1.5, PROMPTS), token_mask=mask))
  actual, expected = run(ROWS), run(None)
  check_same(actual, expected)
  assert len(set(np.asarray(expected.lengths - lengths).tolist())) > 3
  calls = np.asarray(actual.stats.target_calls)
  assert max(calls.max(), calls.sum() / ROWS) <= actual.steps <= calls.sum()


# Longer than a chunk, than two of them; and of one token, which is not read.
LONG = np.random.default_rng(4).integers(0, 4, (8, 12), np.int32)
LONG_LENGTHS = np.array([12, 3, 9, 12, 1, 10, 5, 2], np.int32)
CHUNK = 4


def small_models(head=None):
  """A target, and a draft model that is like it; or a head of that name."""
  target = tiny.random_model(small_heads.TARGET)
  return small_heads.models(head) if head else tiny.arguments(
      tiny.Models(target, tiny.noisy(target, 0.3)))


@pytest.mark.cases(1)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("method,head", [
    (dj.methods.speculative(2), None), (dj.methods.rsd_s(3, 2), "eagle3"),
    (dj.methods.autoregressive(), None), (dj.methods.rsd_s(3, 2), None),
    (dj.methods.opt_tree(4, 3, 2), None),
    (dj.methods.suffix(4, 2, 4), None),
    (dj.methods.gsd(5, 2, 2, 2), None), (dj.methods.rsd_s(2, 2), "mtp")])
def test_texts_do_not_depend_on_chunks(method, head, temperature):
  given = small_models(head)
  if not tree_decoder.decoders(method)[0].needs_draft:
    given.update(draft=None, draft_params=None)
  run = lambda **kwargs: dj.generate(
      jax.random.key(1), LONG, LONG_LENGTHS, method=method, eos_id=3,
      max_new_tokens=7, sampling=dj.Sampling(temperature), **given, **kwargs)
  check_same(run(rows=3, prefill_chunk=CHUNK), run())


TEXTS, TEXT = 6000, 3
CONTEXT = (1, 2, 0, 3, 1, 2)


def p_value_of_chunks():
  """Compares texts after six tokens, which are read in chunks of three."""
  given = small_models()
  out = dj.generate(
      jax.random.key(2), np.tile(CONTEXT, (TEXTS, 1)).astype(np.int32),
      np.full(TEXTS, len(CONTEXT)), method=dj.methods.speculative(2),
      max_new_tokens=TEXT, rows=64, prefill_chunk=3, **given)
  model = tiny.Model(given["target"], given["target_params"])
  return helpers.p_value_of_model(model, CONTEXT, out.tokens)


@pytest.mark.long
def test_texts_after_chunks_have_the_distribution_of_the_target():
  assert p_value_of_chunks() >= exactness.MIN_P_VALUE


@pytest.mark.long
def test_control_chunks_that_begin_one_token_late(monkeypatch, request):
  step = continuous_batching._step_and_read
  late = lambda decoder, context, *args: step(decoder, context.replace(
      prompts=jnp.roll(context.prompts, -1, axis=1)), *args)
  monkeypatch.setattr(continuous_batching, "_step_and_read", late)
  programs.clear()
  request.addfinalizer(programs.clear)
  assert p_value_of_chunks() < helpers.MAX_P_VALUE_OF_CONTROL


def test_a_search_of_some_rows_leaves_the_others():
  """Its one step ends all rows; the last ones stand beside finished ones."""
  models = tiny.tables(exactness.random_table(np.random.default_rng(1), VOCAB))
  tokens, lengths = prompts(VOCAB)
  run = lambda rows: tiny.generate(
      dj.methods.beam_search(2), models, prompts=tokens, lengths=lengths,
      new=NEW, rows=rows, eos_id=5)
  outputs = run(ROWS)
  check_same(outputs, run(None))
  assert outputs.steps == 2


def test_caches_of_rows_that_are_refilled():
  tokens, lengths = prompts(tiny.LLAMA.vocab_size)
  model = tiny.random_model(dataclasses.replace(tiny.LLAMA, num_layers=1))
  run = lambda rows: tiny.generate(
      dj.methods.speculative(1), tiny.Models(model, model), prompts=tokens,
      lengths=lengths, rows=rows, eos_id=3)
  check_same(run(ROWS), run(None))


def test_nobody_waits_for_the_longest():
  # Each token is followed by the one below it.
  models = tiny.tables(np.eye(10)[np.arange(-1, 9) % 10])
  run = lambda starts, rows: tiny.generate(
      dj.methods.autoregressive(), models, new=9, rows=rows, eos_id=0,
      prompts=np.int32(starts)[:, None], lengths=np.ones(len(starts), np.int32))
  out = run([9] + [1] * 7, 2)
  assert (out.lengths - 1).tolist() == [9] + [1] * 7
  assert out.steps == 9
  # A prompt of three tokens is read in two steps, while the long text goes on.
  starts = np.array([[9, 9, 9]] + [[1, 1, 1]] * 3, np.int32)
  out = tiny.generate(
      dj.methods.autoregressive(), models, new=9, rows=2, prompts=starts,
      eos_id=0, lengths=np.full(4, 3), prefill_chunk=1)
  assert (out.lengths - 3).tolist() == [9] + [1] * 3
  assert out.steps == 9
  # All have a turn, also where the last are fewer than are refilled at once.
  out = run([3] * 9, 8)
  assert (out.lengths - 1).tolist() == [3] * 9
  assert out.steps == 6


def test_rows_and_chunks_that_cannot_be():
  model = tiny.scripted(np.zeros((2, 9)), 3)
  for given, words in (
      *((dict(rows=x), f"rows={x!r}: a positive integer")
        for x in (0, -1, 1.5, "all")),
      *((dict(rows=1, prefill_chunk=x), f"prefill_chunk={x!r}: an integer")
        for x in (-1, 0.5, "all")),
      (dict(prefill_chunk=2), "prefill_chunk=2: .* needs rows")):
    with pytest.raises(ValueError, match=words):
      tiny.generate(dj.methods.autoregressive(), tiny.Models(model, model),
                    prompts=np.zeros((2, 1), np.int32), new=4,
                    lengths=np.ones(2, np.int32), **given)


SLOTS = 2048
CONFIG = transformer.Config(
    vocab_size=32, dim=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=64, hidden_dim=32, max_length=SLOTS)


@pytest.mark.cases(1)
@pytest.mark.parametrize("width", [0, 16])
def test_caches_stay_where_they_lie(width):
  lm, params = (transformer.language_model(CONFIG),
                transformer.abstract_params(CONFIG))
  prompts_ = 3 * ROWS
  warper = sampling.make_warper(dj.Sampling(), prompts_, CONFIG.vocab_size)
  context = tiny.context(
      lm, params, jnp.zeros((prompts_, 9), jnp.int32), jnp.full(prompts_, 5),
      warper, draft=None, draft_params=None)
  program = tiny.generate_lib._generate_queued.lower(
      tree_decoder.decoder_of(dj.methods.autoregressive(), False), 8, ROWS,
      SLOTS, 512, width, context,
      jax.random.split(jax.random.key(0), prompts_)).compile()
  sizes = f"64,{SLOTS}|{SLOTS},64"
  # The entry comes last; there zeros are made a buffer for each layer.
  loops = program.as_text().split("ENTRY")[0]
  assert f"{ROWS},1,64,{SLOTS}" in loops
  # But for the zeros that caches begin with.
  assert not re.search(
      rf"= f32\[{ROWS},1,({sizes})\]\S* copy\((?!%broadcast)", loops)
  # All rows, what is put in the place of some of them, and little else.
  row = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(
      jax.eval_shape(lambda: lm.init_cache(1, SLOTS))))
  rows = ROWS + (0 if width else 2 * continuous_batching.refilled(ROWS))
  assert program.memory_analysis().temp_size_in_bytes < (rows + 1) * row
