"""Budget forcing and momentum decoding, against plain Python."""

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny


processors = dj.processors
GREEDY = dj.Sampling(temperature=0)
V, NEW, ROWS = 7, 14, 12
PROMPTS = np.random.default_rng(3).integers(0, V, (ROWS, 4)).astype(np.int32)
LENGTHS = np.arange(ROWS, dtype=np.int32) % 4 + 1
# A method that drafts: states are those of each node of a tree.
TREE = dj.methods.rsd_s(2, 2)


def table(seed=0):
  return exactness.random_table(np.random.default_rng(seed), V)


def run(processor, method=TREE, sampling=GREEDY, distributions=None, **kwargs):
  target, draft = tiny.tables(
      table() if distributions is None else distributions, table(1))
  target = tiny.Model(*processors.apply(processor, (), *target))
  out = tiny.generate(method, tiny.Models(target, draft), prompts=PROMPTS,
                      lengths=LENGTHS, new=NEW, sampling=sampling, **kwargs)
  return tiny.texts(out, LENGTHS)


def greedy(process, distributions=None):
  """Texts of plain Python; `process` is `(prompt, text, probs) -> scores`."""
  distributions, result = (
      table() if distributions is None else distributions), []
  for prompt, length in zip(PROMPTS, LENGTHS):
    prompt, text = prompt[:length].tolist(), []
    while len(text) < NEW:
      probs = distributions[(prompt + text)[-1]]
      text.append(int(np.argmax(process(prompt, text, probs))))
    result.append(text)
  return result


def momentum_scores(resistance, k, most, prompt, text, probs):
  """The rule, by looking for each end of the text in the text before it."""
  before, scores = prompt + text, np.full(len(probs), -np.inf)
  for rank, token in enumerate(sorted(range(len(probs)),
                                      key=lambda x: (-probs[x], x))[:k]):
    after, length = before + [token], 0
    while length <= most and any(
        after[i:i + length + 1] == after[-length - 1:]
        for i in range(len(after) - length - 1)):
      length += 1
    scores[token] = (probs[token] - resistance * length if length <= most
                     else -1000 * (1 + rank))
  return scores


@pytest.mark.cases(1)
@pytest.mark.parametrize("resistance, k, most", [
    (0.2, 5, 5), (0.05, 3, 1), (0.1, V, 2)])
def test_momentum_equals_plain_python(resistance, k, most):
  outputs = run(processors.momentum(V, 4 + NEW, resistance=resistance,
                                    num_candidates=k, max_match=most))
  process = lambda *x: momentum_scores(resistance, k, most, *x)
  assert outputs == greedy(process)
  # Controls: another resistance, and none.
  assert outputs != greedy(lambda *x: momentum_scores(2 * resistance + 0.1, k,
                                                      most, *x))
  assert outputs != greedy(lambda prompt, text, probs: probs)


def test_momentum_without_resistance_is_greedy():
  long = processors.momentum(V, 4 + NEW, resistance=0.0, max_match=4 + NEW)
  assert run(long) == greedy(lambda prompt, text, probs: probs)
  # Where all repeat it takes the most probable: token 0 follows itself alone.
  certain = np.eye(V)[np.zeros(V, int)]
  assert run(processors.momentum(V, 4 + NEW, max_match=1),
             distributions=certain) == [[0] * NEW] * ROWS


def forced(end, minimum, maximum, wait, prompt, text, probs):
  """Budget forcing of probabilities."""
  del prompt
  if end[-1] in text:
    return probs
  probs = probs.copy()
  if len(text) >= maximum:
    return np.eye(len(probs))[end[len(text) - maximum]]
  if len(text) < minimum:
    probs[wait] += probs[end[-1]]
    probs[end[-1]] = 0
  return probs


@pytest.mark.cases(1)
@pytest.mark.parametrize("minimum, maximum", [(0, 4), (5, 8), (6, 6)])
def test_budget_forcing_equals_plain_python(minimum, maximum):
  end, wait = (3, 5), 1
  outputs = run(processors.budget_forcing(end, minimum=minimum, maximum=maximum,
                                          wait=wait))
  assert outputs == greedy(lambda *x: forced(end, minimum, maximum, wait, *x))
  for text in outputs:
    last = text.index(5)
    assert minimum <= last <= maximum + 1
  assert outputs != greedy(lambda prompt, text, probs: probs)


def test_budget_forcing_keeps_the_distribution_of_the_forced_model():
  """Of 20,000 texts, the share of each first token of thinking."""
  method, rows = dj.methods.rsd_s(2, 2), 20_000
  target, draft = tiny.tables(table(), table(1))
  target = tiny.Model(*processors.apply(processors.budget_forcing(
      (5,), minimum=1, wait=1), (), *target))
  out = tiny.generate(method, tiny.Models(target, draft),
                      prompts=np.zeros((rows, 1), np.int32),
                      lengths=np.ones(rows, np.int32), new=2)
  counts = exactness.count(out.tokens[:, 1:], V)
  first = forced((5,), 1, 99, 1, [0], [], table()[0])
  probs = first[:, None] * table()
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Control: the model without a processor.
  assert exactness.p_value(counts, table()[0][:, None] * table()) < 1e-12


def test_no_text_ends_while_its_model_thinks():
  outputs = run(processors.budget_forcing((5,), minimum=6, eos_id=[2, 4]),
                eos_id=[2, 4])
  for text in outputs:
    assert len(text) > 6 and not {2, 4, 5} & set(text[:6])


@pytest.mark.parametrize("make, arguments, words", [
    (processors.budget_forcing, dict(end=()), "end=\\(\\): at least one"),
    (processors.budget_forcing, dict(end=(1,), minimum=-1), "minimum=-1"),
    (processors.budget_forcing, dict(end=(1,), minimum=3, maximum=2),
     "maximum=2: at least minimum=3"),
    (processors.budget_forcing, dict(end=(1,), wait=1), "wait=1: a token oth"),
    (processors.momentum, dict(resistance=-1.0), "resistance=-1.0"),
    (processors.momentum, dict(num_candidates=9), "num_candidates=9: at most"),
    (processors.momentum, dict(max_match=65), "max_match=65: at most 64"),
    # Tokens of another model.
    (lambda: processors.apply(processors.budget_forcing((9,)), (),
                              *exactness.table_model(table())), {},
     "token 9 of budget_forcing: 0 to 6"),
])
def test_options(make, arguments, words):
  if make is processors.momentum:
    arguments = {"vocab_size": V, "window": 9, **arguments}
  with pytest.raises(ValueError, match=words):
    make(**arguments)
