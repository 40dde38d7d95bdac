"""Copies or a drafted chain: exactness, and a draft model that catches up."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from support import head_states, helpers, tiny_models as tiny

V, ROWS, LENGTH = 5, 20_000, 4
METHOD = dj.methods.copy_or_draft(2, copies=3, min_ngram=1, max_ngram=2)
SIBLINGS = dj.methods.copy_or_draft(1, copies=3, min_ngram=1, max_ngram=2,
                                    width=2)
of_both = pytest.mark.parametrize("method", [METHOD, SIBLINGS],
                                  ids=["chain", "siblings"])


@of_both
def test_control_copied_tokens_that_claim_to_be_samples(method):
  """Of all tokens alike; without it texts are exact, see `test_distribution`.
  """
  target, draft = exactness.random_tables(V)
  drafter = method.sampled.drafter

  def propose(*arguments):
    tree, pending = drafter.propose(*arguments)
    return tree.replace(log_probs=jnp.where(
        pending.copied[:, None, None], -np.log(V), tree.log_probs)), pending

  wrong = dj.Pair(drafter._replace(propose=propose), method.sampled.verifier)
  fit = dj.testing.check(dj.Method("wrong", wrong, None), target, draft,
                         rows=ROWS, length=LENGTH)
  assert fit.p_value < helpers.MAX_P_VALUE_OF_CONTROL


@functools.lru_cache(maxsize=None)
def texts(method, temperature):
  """Of a target that drafts for itself."""
  models = tiny.llama_models()
  return tiny.generate(method, tiny.Models(models.target, models.target),
                       new=24, key=jax.random.key(2),
                       sampling=dj.Sampling(temperature))


@of_both
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_the_same_if_all_nodes_are_scored(temperature, method):
  assert method.sampled.drafter.score
  whole = dj.Method("all are scored", *(
      pair._replace(drafter=pair.drafter._replace(score=None))
      for pair in (method.sampled, method.greedy)))
  np.testing.assert_array_equal(*(
      texts(x, temperature).tokens for x in (method, whole)))


@of_both
def test_greedy_texts_are_those_of_the_target(method):
  np.testing.assert_array_equal(
      texts(method, 0.0).tokens,
      texts(dj.methods.autoregressive(), 0.0).tokens)


def test_a_draft_model_reads_what_was_copied():
  model = tiny.llama_models().target
  _, steps = head_states.stepped(
      {"target": model.lm, "target_params": model.params, "draft": model.lm,
       "draft_params": model.params},
      dj.Pair(METHOD.greedy.drafter, verifiers.match()), 10,
      np.tile(tiny.PROMPTS[:2], (2, 1)), np.tile(tiny.LENGTHS[:2], 2))
  copied = np.stack([seen.pending.copied for _, seen in steps])
  accepted = np.stack([seen.verdict.num_accepted for _, seen in steps])
  # A chain after a copy needs what was copied.
  assert (copied[:-1] & ~copied[1:]).any()
  np.testing.assert_array_equal(accepted[~copied], 2)


def test_a_head_reads_what_was_copied():
  context, steps = head_states.stepped(head_states.models(), METHOD.greedy, 16)
  copied = np.stack([seen.pending.copied for _, seen in steps])
  counts = np.stack([seen.count for _, seen in steps])
  # Steps in which some row commits more than is drafted, and others.
  assert copied.any() and (counts > 3).any() and (counts.max(axis=1) < 4).any()
  state, _ = steps[-1]
  head_states.check(context, state, state.carry)
