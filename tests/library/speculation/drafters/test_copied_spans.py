"""Copies or a drafted chain: exactness, and a draft model that catches up."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from support import head_states, helpers, small_heads, tiny_models as tiny

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
  drafter = method.sampled.drafter

  def propose(*arguments):
    tree, pending = drafter.propose(*arguments)
    return tree.replace(log_probs=jnp.where(
        pending.copied[:, None, None], -np.log(V), tree.log_probs)), pending

  helpers.check_wrong(dj.Pair(drafter._replace(propose=propose),
                              method.sampled.verifier), V, ROWS, LENGTH)


@of_both
def test_greedy_texts_are_those_of_the_target(method):
  """Which drafts for itself."""
  target = tiny.llama_models().target
  np.testing.assert_array_equal(*(
      tiny.generate(x, tiny.Models(target, target), new=24,
                    sampling=dj.Sampling(0.0)).tokens
      for x in (method, dj.methods.autoregressive())))


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
  context, steps = head_states.stepped(small_heads.models("mtp"),
                                       METHOD.greedy, 16)
  copied = np.stack([seen.pending.copied for _, seen in steps])
  counts = np.stack([seen.count for _, seen in steps])
  # Steps in which some row commits more than is drafted, and others.
  assert copied.any() and (counts > 3).any() and (counts.max(axis=1) < 4).any()
  state, _ = steps[-1]
  head_states.check(context, state, state.carry)
