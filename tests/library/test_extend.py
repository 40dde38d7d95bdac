"""More prompt tokens after texts: as prompts that hold them from the start."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import loop
from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree_decoder
from models import cacheless, transformer
from support import helpers, small_heads, tiny_models as tiny
from support.example_methods import each

M = dj.methods
ROOM, NEW, EOS, VOCAB = 26, 5, 3, 13
PROMPTS = np.pad(tiny.PROMPTS, ((0, 0), (0, ROOM - tiny.PROMPTS.shape[1])))
TURNS = [([[4, 8, 9, 4], [0, 0, 0, 0], [7, 7, 0, 0]], [4, 0, 2]),
         ([[5, 0, 0], [6, 12, 1], [8, 8, 0]], [1, 3, 2])]
_LONG = functools.partial(dataclasses.replace, max_length=64)
TREE = M.rsd_s(3, 2)
models = functools.partial(tiny.long_models, tiny.LLAMA)


def begin(given, method, prompts=PROMPTS, lengths=tiny.LENGTHS, key=None,
          temperature=1.0, **kwargs):
  if not tree_decoder.decoders(method)[0].needs_draft:
    given = {**given, "draft": None, "draft_params": None}
  return dj.begin(jax.random.key(1) if key is None else key, prompts, lengths,
                  method=method, max_new_tokens=NEW,
                  sampling=dj.Sampling(temperature=temperature),
                  **{"eos_id": EOS, **given, **kwargs})


def finish(run):
  while not run.done.all():
    run, _ = dj.step(run)
  return run


def texts(run):
  return tiny.texts(dj.result(run), np.zeros_like(run.lengths))


def more_tokens(turn, vocab_size=VOCAB):
  tokens, lengths = (np.array(x, np.int32) for x in TURNS[turn])
  return tokens % vocab_size, lengths


def check_same(given, method, finished=True, **kwargs):
  """Asserts texts, counts and log-probabilities of prompts as long."""
  vocab_size = given["target"].vocab_size
  run = begin(given, method, **{"prompts": PROMPTS % vocab_size, **kwargs})
  for turn in range(len(TURNS)):
    run = finish(run) if finished else dj.step(run)[0]
    before, (tokens, lengths) = texts(run), more_tokens(turn, vocab_size)
    run = dj.extend(run, tokens, lengths)
    texts_ = texts(run)
    assert texts_ == [text + row[:count].tolist() for text, row, count in zip(
        before, tokens, lengths)]
    prompts = np.array([text + [0] * (ROOM - len(text)) for text in texts_])
    begun = begin(given, method, **{**kwargs, "prompts": prompts,
                                    "lengths": run.lengths,
                                    "key": run.state.keys})
    # Log-probabilities of other shapes of the same sums.
    rows = np.flatnonzero(lengths)
    out, expected = (dj.result(finish(x)) for x in (run, begun))
    helpers.check_same(helpers.of_rows(out, rows), expected, rows)
  return run


@pytest.mark.cases(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@each([M.examples()[name][0] for name in (
    "rsd_s", "pearl", "suffix", "autoregressive", "opt_tree", "token_recycling",
    "lookahead", "prompt_lookup", "ssd", "beam_search")])
def test_texts_are_those_of_prompts_from_the_start(method, temperature):
  check_same(models(), method, temperature=temperature)


@pytest.mark.cases(1)
@pytest.mark.parametrize("config", [tiny.DELTA, tiny.MAMBA, tiny.GEMMA],
                         ids=["delta", "mamba", "gemma"])
def test_recurrent_layers_and_windows(config):
  check_same(tiny.long_models(config), TREE)


def test_recurrent_layers_of_a_method_that_sets_caches_back():
  target = tiny.random_model(_LONG(tiny.DELTA))
  features = transformer.with_features(_LONG(tiny.DELTA), (1,))
  run = begin({"target": features, "target_params": target.params},
              M.contrastive_search(2), temperature=0.0)
  with pytest.raises(ValueError, match="recurrent layers cannot do"):
    dj.extend(run, *more_tokens(0))


@pytest.mark.parametrize("name, method", [
    ("eagle3", M.speculative(2)),
    pytest.param("medusa", M.rsd_c((2, 2)), marks=pytest.mark.long),
    pytest.param("mtp", TREE, marks=pytest.mark.long)])
def test_heads(name, method, monkeypatch):
  monkeypatch.setattr(prefill, "CHUNK", 4)
  check_same(small_heads.models(name), method, eos_id=None)


@pytest.mark.parametrize("finished", [True, False])
def test_in_chunks_beside_rows_that_run(monkeypatch, finished):
  monkeypatch.setattr(prefill, "CHUNK", 2)
  monkeypatch.setattr(loop, "full_size", lambda decoder, context, new: (
      ROOM + new + decoder.max_slots_ahead))
  check_same(models(), TREE, finished)


def test_a_row_without_more_goes_on():
  """While another row has more tokens, and its caches as many slots."""
  run, _ = dj.step(begin(models(), TREE, eos_id=None))
  expected = dj.result(finish(run))
  tokens, lengths = more_tokens(0)
  out = dj.result(finish(dj.extend(run, tokens, lengths)))
  assert not run.done[1]
  for name in ("tokens", "lengths", "log_probs", "stats"):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1], y[1]),
                 getattr(out, name), getattr(expected, name))


def test_a_shared_prefix():
  check = functools.partial(check_same, models(), TREE, shared_prefix=None)
  expected = texts(check(prompts=np.concatenate(
      [np.tile([1, 9], (3, 1)), PROMPTS], 1)[:, :ROOM],
                         lengths=tiny.LENGTHS + 2))
  run = begin(models(), TREE, PROMPTS[:, :ROOM - 2], shared_prefix=[1, 9])
  for turn in range(2):
    run = dj.extend(finish(run), *more_tokens(turn))
  assert texts(run) == [text[:count] for text, count in zip(
      expected, run.lengths)]


@pytest.mark.parametrize("reads_prompt", [
    False, pytest.param(True, marks=pytest.mark.long)])
def test_processors_begin_at_the_end_of_the_prompt(reads_prompt):
  processor = tiny.counting_processor(reads_prompt)
  given = models()
  for name in ("target", "draft"):
    given[name], given[f"{name}_params"] = dj.processors.apply(
        processor, (), given[name], given[f"{name}_params"])
  check_same(given, TREE)


def test_without_a_cache_and_past_the_drafters_window():
  given = models(max_length=18)
  given["target"] = cacheless.language_model(functools.partial(
      transformer.causal_logits, given["target"]), VOCAB, 64)
  run = begin(given, TREE)
  assert run.context.draft.max_length == 18
  run = dj.extend(finish(run), *more_tokens(0))
  run = dj.extend(finish(run), *more_tokens(1))
  assert run.context.draft.max_length == 0 and int(run.lengths.max()) > 18 - NEW
  check_same({**given, "draft": run.context.draft}, TREE)


def test_in_one_program_and_compiled_once():
  given = models()

  @jax.jit
  def chat(key):
    run = begin(given, TREE, key=key)
    for turn in (0, 1):
      run, _ = jax.lax.scan(lambda run, _: (dj.step(run)[0], None), run,
                            length=NEW)
      run = dj.extend(run, *more_tokens(turn))
    return run.tokens, run.lengths

  tokens, lengths = chat(jax.random.key(1))
  run, before = begin(given, TREE), loop._extend.num_programs()
  for turn in (0, 1, 1):
    run = dj.extend(finish(run), np.pad(more_tokens(turn)[0], ((0, 0), (
        0, int(turn)))), more_tokens(turn)[1])
    if turn == 1 and lengths is not None:
      np.testing.assert_array_equal(run.tokens, tokens)
      np.testing.assert_array_equal(run.lengths, lengths)
      lengths = None
  assert loop._extend.num_programs() == before + 1


@pytest.mark.parametrize("tokens, lengths, message", [
    ([[1]] * 2, [1, 1], r"lengths has shape \(2,\): one for each of 3 rows"),
    ([[1]] * 3, [1, 2, 1], r"lengths\[1\]=2: 0 to 1, the width of tokens"),
    ([[1], [99], [1]], [1, 1, 1], r"tokens\[1, 0\]=99: 0 to 12, the target's"),
    ([[1.0]] * 3, [1, 1, 1], r"tokens has shape \(3, 1\) and type float64"),
    ([[1] * 22] * 3, [22] * 3,
     r"lengths\[0\]=22: after 5 tokens these are 27, and a run has room for 26")
])
def test_what_is_refused(tokens, lengths, message):
  run = begin(models(), TREE)
  with pytest.raises(ValueError, match=message):
    dj.extend(run, tokens, lengths)


def test_the_targets_window():
  given = models()
  given["target"] = given["target"]._replace(max_length=24)
  with pytest.raises(ValueError, match="a prompt of 20 tokens and max_new_tok"):
    dj.extend(begin(given, M.autoregressive()), [[1] * 15] * 3, [15, 0, 0])
