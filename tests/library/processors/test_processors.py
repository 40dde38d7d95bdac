"""Logits processors are exact, by any method, in any branch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import processors
import decoding_jax as dj
from decoding_jax.processors import model_wrapper
from decoding_jax.runtime import cache as cache_lib, prefill
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.example_methods import each
from support.helpers import check_same

ROWS, CONTROL_ROWS = 100_000, 50_000
LENGTH = 4
# State 0 allows three tokens, state 2 leads back, state 3 is left at once.
FOLLOWING = np.array([[1, -1, 2, 0, -1], [1, 3, -1, -1, 2], [-1, 0, 0, 1, 3],
                      [0, -1, -1, -1, 1]])
V = FOLLOWING.shape[1]
METHODS = [dj.methods.rsd_c((2, 2)), dj.methods.rsd_s(2, 2),
           dj.methods.spectr(2, 2)]
CHAIN = dj.methods.speculative(1)


def machine(states, vocab_size, seed=0):
  """The `[Q, V]` table of a random automaton; no state is stuck."""
  rng = np.random.default_rng(seed)
  following = rng.integers(0, states, (states, vocab_size))
  following[rng.random(following.shape) < 0.6] = -1
  following[:, 0] = rng.integers(0, states, states)
  return following


def with_processor(models, processor, params, draft=True):
  """Both models processed, or the target alone."""
  target, other = (tiny.Model(*dj.processors.apply(processor, params, *model))
                   for model in models)
  return tiny.Models(target, other if draft else models.draft)


def masked(following):
  """What an automaton does to logits: `(prompt, text, logits) -> logits`."""
  def process(prompt, text, logits):
    del prompt
    state = 0
    for token in text:
      state = following[state, token]
    return np.where(following[state] >= 0, logits, -np.inf)

  return process


def distribution_of_texts(table, process):
  """`[V] * LENGTH`, the processed distribution after token 0."""
  probs = np.zeros((V,) * LENGTH)

  def extend(text, chance):
    if len(text) == LENGTH:
      probs[tuple(text)] = chance
      return
    logits = np.log(table[text[-1] if text else 0])
    row = np.exp(process([0], text, logits))
    for token in np.flatnonzero(row):
      extend([*text, int(token)], chance * row[token] / row.sum())

  extend([], 1.0)
  return probs


def frequencies(method, rows, processor=None, draft=True):
  """How often each text follows, and the distribution that it should have."""
  rng = np.random.default_rng(0)
  distributions = [exactness.random_table(rng, V) for _ in range(2)]
  models = with_processor(
      tiny.tables(*distributions), processor or processors.automaton(),
      processors.table(FOLLOWING), draft)
  out = tiny.generate(method, models, prompts=np.zeros((rows, 1), np.int32),
                      lengths=np.ones(rows, np.int32), new=LENGTH)
  counts = exactness.count(out.tokens[:, 1:], V)
  return counts, distribution_of_texts(distributions[0],
                                       masked(FOLLOWING)), out.stats


@pytest.mark.cases(1)
@each(METHODS)
def test_joint_distribution_of_an_automaton(method):
  counts, probs, _ = frequencies(method, ROWS)
  assert (probs > 0).sum() > 50
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE


@pytest.mark.long
def test_joint_distribution_with_a_drafter_that_may_draft_anything():
  method = METHODS[1]
  counts, probs, free = frequencies(method, ROWS, draft=False)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  _, _, guided = frequencies(method, ROWS)
  assert free.target_calls.sum() > guided.target_calls.sum()


@pytest.mark.long
def test_control_the_states_of_other_branches_fail(monkeypatch):
  monkeypatch.setattr(model_wrapper, "_parents", lambda above: jnp.where(
      above.any(axis=-1), jnp.arange(above.shape[1]) - 1, -1))
  # A new processor, so that no program compiled with this is used elsewhere.
  counts, probs, _ = frequencies(METHODS[0], CONTROL_ROWS,
                                 processors.automaton()._replace(
                                     init=lambda params: jnp.int32(0)))
  assert exactness.p_value(counts, probs) < helpers.MAX_P_VALUE_OF_CONTROL


def greedy(process):
  """Greedy texts of `llama_models` by a loop over whole texts."""
  model, result = tiny.llama_models().target, []
  for prompt, length in zip(tiny.PROMPTS, tiny.LENGTHS):
    prompt, text = prompt[:length].tolist(), []
    for _ in range(tiny.NEW):
      tokens = np.zeros((1, tiny.PROMPTS.shape[1] + tiny.NEW), np.int32)
      tokens[0, :len(prompt + text)] = prompt + text
      logits = np.asarray(tiny.causal(model, tokens)[0])[0]
      text.append(int(np.argmax(process(prompt, text,
                                        logits[len(prompt + text) - 1]))))
    result.append(text)
  return result


GREEDY = [
    dj.methods.autoregressive(), *METHODS[:2], dj.methods.beam_search(1),
    dj.methods.cdsl(lookahead=3, num_candidates=1)]


@pytest.mark.cases(1)
@each(GREEDY)
def test_greedy_texts_of_an_automaton(method):
  following = machine(6, tiny.LLAMA.vocab_size)
  steered = {} if isinstance(method.greedy, dj.Pair) else {
      "reward": tiny.sum_reward()}
  out = tiny.generate(
      method, with_processor(tiny.llama_models(), processors.automaton(),
                             processors.table(following)),
      sampling=dj.Sampling(temperature=0), **steered)
  assert tiny.texts(out, tiny.LENGTHS) == greedy(masked(following))


def test_greedy_texts_without_repetitions():
  def process(prompt, text, logits):
    seen = np.isin(np.arange(len(logits)), prompt + text)
    return np.where(seen, np.where(logits > 0, logits / 1.7, logits * 1.7),
                    logits)

  models = with_processor(
      tiny.llama_models(),
      processors.repetition_penalty(1.7, tiny.LLAMA.vocab_size), ())
  out = tiny.generate(CHAIN, models, sampling=dj.Sampling(temperature=0))
  expected = greedy(process)
  assert tiny.texts(out, tiny.LENGTHS) == expected
  assert expected != greedy(lambda prompt, text, logits: logits)


def without_ngrams(size, tokens, logits):
  """Logits where the last tokens and one more would be there again."""
  there = {tuple(tokens[i:i + size]) for i in range(len(tokens) - size + 1)}
  last = tuple(tokens[len(tokens) - size + 1:])
  return np.array([-np.inf if (*last, token) in there else x
                   for token, x in enumerate(logits)])


def with_penalties(presence, frequency, text, logits):
  times = np.bincount(np.array(text, int), minlength=len(logits))
  return logits - presence * (times > 0) - frequency * times


@pytest.mark.cases(1)
@pytest.mark.parametrize("penalty, process", [
    (processors.occurrence_penalty(0.3, 0.5, tiny.LLAMA.vocab_size, tiny.NEW),
     lambda prompt, text, logits: with_penalties(0.3, 0.5, text, logits)),
    (processors.no_repeat_ngram(
        2, tiny.LLAMA.vocab_size, tiny.PROMPTS.shape[1] + tiny.NEW),
     lambda prompt, text, logits: without_ngrams(2, prompt + text, logits))],
    ids=["occurrence_penalty", "no_repeat_ngram"])
def test_greedy_texts_that_depend_on_all_tokens(penalty, process):
  models = with_processor(tiny.llama_models(), penalty, ())
  out = tiny.generate(METHODS[1], models,
                      sampling=dj.Sampling(temperature=0))
  expected = greedy(process)
  assert tiny.texts(out, tiny.LENGTHS) == expected
  assert expected != greedy(lambda prompt, text, logits: logits)


@pytest.mark.long
def test_joint_distribution_of_penalties_and_no_repeats():
  """One reads the prompt and the other does not; the drafter has neither."""
  distributions = [exactness.random_table(np.random.default_rng(i), V)
                   for i in (3, 4)]
  models = tiny.tables(*distributions)
  for processor in (processors.occurrence_penalty(1.5, -0.7, V, LENGTH),
                    processors.no_repeat_ngram(2, V, 1 + LENGTH)):
    models = with_processor(models, processor, (), draft=False)
  out = tiny.generate(METHODS[1], models, prompts=np.zeros((ROWS, 1), np.int32),
                      lengths=np.ones(ROWS, np.int32), new=LENGTH)
  counts = exactness.count(out.tokens[:, 1:], V)
  probs = distribution_of_texts(
      distributions[0], lambda prompt, text, logits: without_ngrams(
          2, prompt + text, with_penalties(1.5, -0.7, text, logits)))
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Control: the prompt counts for the penalty as well.
  other = distribution_of_texts(
      distributions[0], lambda prompt, text, logits: without_ngrams(
          2, prompt + text, with_penalties(1.5, -0.7, prompt + text, logits)))
  assert exactness.p_value(counts, other) < helpers.MAX_P_VALUE_OF_CONTROL


def test_only_the_last_tokens_count():
  ours = processors.occurrence_penalty(2.0, 0.5, V, 3)
  state = ours.init(())
  for token, expected in ((1, [0, 2.5, 0, 0, 0]), (1, [0, 3, 0, 0, 0]),
                          (4, [0, 3, 0, 0, 2.5]), (4, [0, 2.5, 0, 0, 3])):
    state = ours.advance((), state, jnp.int32(token))
    np.testing.assert_array_equal(ours.process((), state, jnp.ones(V)),
                                  1 - np.array(expected))


def test_no_end_before_so_many_tokens():
  vocab_size = tiny.LLAMA.vocab_size
  plain = tiny.generate(CHAIN, tiny.llama_models(), eos_id=(3, 5))
  ends = np.asarray(plain.lengths) - tiny.LENGTHS
  assert ends.min() < 6
  chain = processors.chain((processors.min_new_tokens(6, (3, 5)),
                            processors.automaton()))
  models = with_processor(tiny.llama_models(), chain, (
      (), processors.table(np.zeros((1, vocab_size), np.int32))))
  out = tiny.generate(CHAIN, models, eos_id=(3, 5))
  assert (np.asarray(out.lengths) - tiny.LENGTHS > 6).all()


def test_rows_that_wait_and_prompts_in_chunks(monkeypatch):
  """Texts are the same where rows are refilled, whatever prefill does."""
  models = with_processor(
      tiny.llama_models(), processors.automaton(),
      processors.table(machine(6, tiny.LLAMA.vocab_size)))
  expected = tiny.generate(CHAIN, models)
  monkeypatch.setattr(prefill, "CHUNK", 2)
  check_same(tiny.generate(CHAIN, models, rows=1, prefill_chunk=2), expected)


def test_states_of_a_tree_are_those_of_its_paths():
  """Against reading each path alone: a chain is before the tree in the block,
  which has two branches; row 1 has an empty cache."""
  following = machine(6, tiny.LLAMA.vocab_size)
  model = tiny.Model(*dj.processors.apply(
      processors.automaton(), processors.table(following),
      *tiny.random_model(tiny.OPT)))
  parents = np.array([-1, 0, 1, 1, 2, 3, 3])
  tokens = np.array([[4, 0, 0, 9, 7, 0, 0], [2, 0, 5, 0, 0, 3, 0]], np.int32)
  mask = np.eye(7, dtype=bool)
  for i in range(1, 7):
    mask[i] |= mask[parents[i]]
  prefix = np.array([[0, 5], [0, 0]], np.int32)
  cache = model.lm.after_prompt(
      model.params, tiny.committed(model, prefix, np.array([2, 0]), 4))
  block = cache_lib.init_block(cache, 7)
  logits, forward = [], jax.jit(model.lm.forward)
  for slots in (slice(0, 2), slice(2, 7)):
    actual, block = forward(
        model.params, tokens[:, slots], np.zeros_like(tokens)[:, slots], cache,
        block, slots.start,
        np.broadcast_to(mask[slots], (2, *mask[slots].shape)))
    logits.append(np.asarray(actual))
  forbidden = np.concatenate(logits, axis=1) == -np.inf
  for row in range(2):
    for node in range(7):
      # The root is the last token of the prompt, which is not read.
      path, state = np.flatnonzero(mask[node])[1:], 0
      for token in tokens[row, path]:
        state = following[state, token] if state >= 0 else -1
      expected = following[state] < 0 if state >= 0 else np.zeros(13, bool)
      np.testing.assert_array_equal(forbidden[row, node], expected)


def test_equal_processors_are_one_model():
  models = tiny.llama_models().target
  params = processors.table(machine(6, tiny.LLAMA.vocab_size))
  first, second = (dj.processors.apply(processors.automaton(), params, *models)
                   for _ in range(2))
  assert first[0] is second[0]


def refused(*cases):
  """Asserts that each `(message, function, *arguments)` is a ValueError."""
  for message, call, *arguments in cases:
    with pytest.raises(ValueError, match=message):
      call(*arguments)


def test_errors_tell_what_is_needed():
  refused(
      (r"reads_prompt=\[False, True\]: at lea", processors.chain, (
          processors.min_new_tokens(2, 1),
          processors.repetition_penalty(1.5, 13))),
      (r"processors\[1\] is of type NoneType", processors.chain,
       [processors.min_new_tokens(2, 1), None]),
      ("frequency=nan: a number from -inf to", processors.occurrence_penalty, 0,
       float("nan"), 13, 3),
      ("window=0: a positive integer", processors.occurrence_penalty, 0, 1, 13,
       0),
      ("size=1.5: a positive integer", processors.no_repeat_ngram, 1.5, 13, 3),
      ("window=3: at least size=4 is needed", processors.no_repeat_ngram, 4, 13,
       3),
      ("penalty=0: a positive number is", processors.repetition_penalty, 0, 13),
      ("count=-1: 0 or a positive integer", processors.min_new_tokens, -1, 0),
      ("count=True: 0 or a positive int", processors.min_new_tokens, True, 0),
      ("eos_id=None: a token that ends", processors.min_new_tokens, 1, None))
  assert processors.min_new_tokens(2, [1, 3]) is processors.min_new_tokens(
      np.int64(2), (1, 3))


def test_processors_that_fit_no_model():
  model = tiny.llama_models().target
  count, table = processors.min_new_tokens(2, 1), dj.processors.table(
      np.zeros((1, 13), int))
  apply = lambda processor, params=(), given=model: dj.processors.apply(
      processor, params, *given)
  refused(
      ("processor is of type Reward: a dj.Log", apply, tiny.sum_reward()),
      (r"state of int32\[2\]: that of Logits", apply, count._replace(
          advance=lambda params, state, token: jnp.stack([state, token]))),
      (r"shape \(3,\): \[V\]=\(13,\) is need", apply, count._replace(
          process=lambda params, state, logits: logits[:3])),
      ("processor.advance=None: a function", apply,
       count._replace(advance=None)),
      ("lm is of type Model: a dj.LanguageMod", apply, count, (),
       (model, None)),
      ("type list: an Automaton, as dj.proces", apply, processors.automaton(),
       [1]),
      ("over 7 tokens: one over the", apply, processors.automaton(),
       dj.processors.table(np.zeros((1, 7), int))),
      *(("of a chain: a tuple of 2 is needed", apply,
         processors.chain((count, count)), params)
        for params in ((), ((),), table)),
      *(("of min_new_tokens: 0 to 12, tokens", apply,
         processors.min_new_tokens(2, eos_id)) for eos_id in (-1, (1, 13))),
      ("vocab_size=7 of a repetition penalty", apply,
       processors.repetition_penalty(1.5, 7)),
      *(("vocab_size=7 of .*: 13, that of the", apply, other)
        for other in (processors.occurrence_penalty(1, 1, 7, 3),
                      processors.no_repeat_ngram(2, 7, 3))))


def test_under_jit_a_processor_is_traced():
  @jax.jit
  def run(key, params):
    model = dj.processors.apply(processors.automaton(), params,
                                *tiny.llama_models().target)
    return dj.generate(
        key, tiny.PROMPTS, tiny.LENGTHS, method=dj.methods.autoregressive(),
        target=model[0], target_params=model[1], max_new_tokens=2).tokens

  keys = jax.random.key(0)
  for token in (4, 11):
    only = np.where(np.arange(13) == token, 0, -1)[None]
    params = processors.table(only).replace(
        classes=np.arange(13), following=jnp.asarray(only))
    tokens = np.asarray(run(keys, params))
    for row, length in zip(tokens, tiny.LENGTHS):
      assert (row[length:length + 2] == token).all()
  assert run._cache_size() == 1
