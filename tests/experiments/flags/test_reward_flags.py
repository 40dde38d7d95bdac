"""Rewards that a flag names."""

from absl import flags
from absl.testing import flagsaver
import jax
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.flags import reward_flags
from support import helpers

PROMPTS = np.array([[40, 41, 42], [50, 60, 70]], np.int32)
BUDGET = 12


@pytest.fixture(name="pair", scope="module")
def _pair(folders):
  return helpers.load_pair(*folders)


@pytest.fixture(name="judged")
def _judged(pair):
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver():
    def judged(name):
      flags.FLAGS.reward = name
      return reward_flags.judged(pair, PROMPTS.shape[1], BUDGET)

    yield judged


def best(pair, judged, method):
  keys = jax.random.split(jax.random.key(0), len(PROMPTS))
  return mesh.generate(
      pair, keys, PROMPTS, np.full(len(PROMPTS), PROMPTS.shape[1]),
      method=method, max_new_tokens=BUDGET, sampling=dj.Sampling(1.0),
      **reward_flags.arguments(judged, pair, len(PROMPTS)))


def test_words_steer_a_search(pair, judged):
  """The best of many samples has more of the words than one sample."""
  result = judged("words:b/d/f/h,c/e/g/i")
  rewards = [best(pair, result, dj.methods.best_of_n(n)).stats.extra["reward"]
             for n in (1, 64)]
  assert rewards[0].sum() < rewards[1].sum()
  out = best(pair, result, dj.methods.autoregressive())
  assert reward_flags.line(out) == [
      f"reward {float(out.stats.extra['reward'][0]):.3f}"]


def test_a_model_with_another_tokenizer_scores_on_the_host(pair, judged):
  result = judged("harmless-reward")
  out = best(pair, result, dj.methods.best_of_n(2))
  assert dj.rewards.host_report(result.reward).texts
  assert np.isfinite(out.stats.extra["reward"]).all()


def test_no_reward(pair, judged):
  result = judged("")
  assert not reward_flags.given()
  assert result is None
  assert not reward_flags.line(best(pair, result, dj.methods.autoregressive()))


@pytest.mark.parametrize("name,error", [
    ("words:", "--reward='words:': words are needed"),
    ("words:a,,b", "words are needed, separated by commas"),
    ("words:" + "a" * 99, "--reward='words:a*'"),
    ("nowhere", "model 'nowhere' is neither a folder"),
    ("python-draft", "'python-draft' is a model of texts, not of rewards")])
def test_errors(judged, name, error):
  with pytest.raises(launch.UserError, match=error):
    judged(name)
