"""The product of the vectors of prompt and continuation, as a reward."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from experiments.data import batches
from experiments.training import steps
from models import transformer
from models.transformer import reward_model
from support import tiny_models as tiny

_CONFIG = dataclasses.replace(tiny.LLAMA, outputs=6)


def product(prefix, suffix):
  """That of whole texts, in numpy."""
  lm, params = tiny.random_model(_CONFIG)
  first, last = (np.asarray(transformer.causal_logits(
      lm, params, jnp.asarray([x])))[0, -1] for x in (prefix, suffix))
  return first[:3] @ last[3:]


def test_values_are_products_of_whole_texts():
  """Whatever the parts are that a text comes in; control: its halves."""
  lm, params = tiny.random_model(_CONFIG)
  reward = reward_model.reward(lm, 4, (12,), dual=True)
  prompt, text = np.array([5, 1, 12, 7, 3, 9]), np.array([2, 8, 12, 6, 4, 4])
  state = reward.init(params, None, prompt, 5)
  assert reward.value(params, None, state) == 0
  for part in np.split(text, [1, 4]):
    state = reward.advance(params, None, state, part, np.ones(len(part), bool))
  # Of the prompt's first five tokens and of the text, all but 12.
  result = reward.value(params, None, state)
  np.testing.assert_allclose(result, product([5, 1, 7, 3], [8, 6, 4, 4]),
                             atol=1e-4)
  assert abs(result - product([8, 6, 4, 4], [5, 1, 7, 3])) > 0.01


def test_segments_are_ranked_by_it():
  lm, params = tiny.random_model(_CONFIG)
  target = tiny.random_model(tiny.LLAMA)
  out = dj.generate(
      jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
      method=dj.methods.segment_search(2, 3, 4), target=target.lm,
      target_params=target.params, max_new_tokens=tiny.NEW,
      reward=reward_model.reward(lm, tiny.NEW, dual=True), reward_params=params)
  for row, length in enumerate(tiny.LENGTHS):
    text = out.tokens[row, length:length + tiny.NEW].tolist()
    np.testing.assert_allclose(
        out.stats.extra["reward"][row],
        product(tiny.PROMPTS[row, :length].tolist(), text), atol=1e-4)


def test_the_loss_is_that_of_the_right_continuation_among_all():
  """Of 2 windows of 2 pieces, 3 tokens and 4; control: others' continuations.
  """
  lm, params = tiny.random_model(_CONFIG)
  tokens = np.random.default_rng(0).integers(0, 13, (2, 15))
  task = steps.continuations(3, 4, 6)
  loss = lambda tokens: float(steps.objective(task, lm)(
      params, batches.whole(tokens)))
  pieces = tokens[:, :-1].reshape(4, 7)
  logits = np.array([[[product(a[:3], b[3:end]) for b in pieces]
                      for a in pieces] for end in (4, 5, 6, 7)])
  scores = np.log(np.exp(logits).sum(axis=2)) - np.diagonal(
      logits, axis1=1, axis2=2)
  np.testing.assert_allclose(loss(tokens), scores.mean(), rtol=1e-4)
  swapped = tokens.copy()
  swapped[:, 3:7], swapped[:, 10:14] = tokens[:, 10:14], tokens[:, 3:7]
  assert abs(loss(swapped) - scores.mean()) > 0.01
