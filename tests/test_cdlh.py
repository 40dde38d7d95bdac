"""CDLH against plain Python, its laws, its program."""

import functools
import importlib

import numpy as np
import pytest

import decoding_jax as dj
import helpers
import lookahead_reference as reference
import models_for_tests as tiny

generate_lib = importlib.import_module("decoding_jax.generate")

GREEDY = dj.Sampling(temperature=0)
ROWS, V, NEW, EOS = 24, 7, 9, 2
PROMPTS = np.random.default_rng(1).integers(0, V, (ROWS, 3)).astype(np.int32)
LENGTHS = np.arange(ROWS, dtype=np.int32) % 3 + 1


def tables(seed=0):
  """A target and a draft that often agree with it."""
  rng = np.random.default_rng(seed)
  target = helpers.random_table(rng, V)
  draft = 0.6 * target + 0.4 * helpers.random_table(rng, V)
  return tiny.Models(*(tiny.Model(*helpers.table_model(x))
                       for x in (target, draft)))


def values(seed=0, rows=ROWS):
  """Of the states of the reward, in each row."""
  return np.random.default_rng((7, seed)).normal(
      size=(rows, tiny.STATES)).astype(np.float32)


def run(method, seed=0, models=None, rows=slice(None), **kwargs):
  kwargs = dict(eos_id=EOS, new=NEW, sampling=GREEDY, reward_params=1.0,
                constraints=values(seed), **kwargs)
  kwargs["constraints"] = kwargs["constraints"][rows]
  return tiny.generate(method, models or tables(seed), prompts=PROMPTS[rows],
                       lengths=LENGTHS[rows], reward=tiny.table_reward(),
                       **kwargs)


def reference_rows(seed=0, eos=EOS, new=NEW):
  target, draft = (np.asarray(model.params.table) for model in tables(seed))
  for prompt, length, table in zip(PROMPTS, LENGTHS, values(seed)):
    yield reference.Row(
        prompt[:length].tolist(), new, eos, lambda text: target[text[-1]],
        lambda text: draft[text[-1]],
        functools.partial(tiny.table_value, table))


@pytest.mark.parametrize("rollout", ["target", "draft"])
@pytest.mark.parametrize("weight, reward_weight", [(1, 1.0), (0, 0.5)])
def test_equals_plain_python(rollout, weight, reward_weight):
  look = reference.Look(3, 4, weight, reward_weight, rollout)
  method = dj.methods.cdlh(*look)
  for seed in range(4):
    out = run(method, seed)
    expected = [reference.cdlh(row, look) for row in reference_rows(seed)]
    assert tiny.texts(out, LENGTHS) == expected
