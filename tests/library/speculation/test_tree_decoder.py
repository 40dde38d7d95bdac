"""The step of draft trees: what is scored, and when it may be less."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import scoring, tree as tree_lib
from support import tiny_models as tiny


def score(function, valid):
  """Logits and block of one step on a tiny transformer."""
  model = tiny.llama_models().target
  prompts = jnp.asarray(tiny.PROMPTS)
  tree = tree_lib.from_parents(
      jnp.tile(jnp.array([[3, 4, 5]]), (len(prompts), 1)),
      jnp.tile(jnp.array([[-1, 0, 1]]), (len(prompts), 1)),
      jnp.tile(jnp.array([[True, valid, valid]]), (len(prompts), 1)))
  context = tiny.context(model.lm, model.params, prompts,
                         jnp.asarray(tiny.LENGTHS), None)
  cache = model.lm.init_cache(len(prompts), 8)
  state = types.SimpleNamespace(target_cache=cache, length=jnp.ones(
      len(prompts), jnp.int32))
  return function(context, state, tree)


@pytest.mark.parametrize("valid", [True, False])
def test_the_root_is_scored_either_way(valid):
  logits, block = score(scoring.all_nodes, valid)
  result, fresh = score(scoring.root_unless_drafted, valid)
  np.testing.assert_allclose(result[:, 0], logits[:, 0], atol=1e-5)
  for x, y in zip(fresh.keys, block.keys):
    np.testing.assert_allclose(x[..., 0], y[..., 0], atol=1e-5)
  # Other nodes are scored where they may be tested.
  assert bool(result[:, 1:].any()) == valid


@pytest.mark.cases(3)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [
    dj.methods.prompt_lookup(2, 2),
    *(dj.methods.copy_or_draft(depth, copies=3, min_ngram=1, max_ngram=2,
                               width=width) for depth, width in (
                                   (2, 1), (1, 2)))], ids=lambda x: x.name)
def test_texts_are_the_same_with_skipped_nodes_or_without(method, temperature):
  """Of a target that drafts for itself, if a model does."""
  assert method.sampled.drafter.score
  scored = dj.Method("all are scored", *(
      pair._replace(drafter=pair.drafter._replace(score=None))
      for pair in (method.sampled, method.greedy)))
  target = tiny.llama_models().target
  np.testing.assert_array_equal(*(
      tiny.generate(x, tiny.Models(target, target), new=24,
                    key=jax.random.key(2),
                    sampling=dj.Sampling(temperature)).tokens
      for x in (method, scored)))
