"""Trees that the target's first layers prune."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib, prefill
from decoding_jax.speculation import drafters, tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import best_first_trees
from models import transformer
from support import head_states, small_heads, tiny_models as tiny

_SIZES = dict(branching=(3, 2), nodes=4, layers=1)
_METHOD = dj.methods.propd(**_SIZES)


def test_texts_have_the_distribution_of_the_target():
  result, stats = head_states.fit(_METHOD, small_heads.models("medusa"))
  assert result >= 1e-5
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()
  # The heads, and the first layers.
  np.testing.assert_array_equal(stats.draft_calls, 2 * stats.target_calls)


def test_control_children_that_are_tested_by_matches_alone():
  pair = dj.Pair(drafters.propd(*_SIZES.values()), verifiers.match())
  assert head_states.fit(dj.Method("wrong", pair, None),
                         small_heads.models("medusa"))[0] < 1e-5


@pytest.mark.cases(1)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_greedy_texts_and_the_nodes_that_are_kept(scan_layers):
  """Those of the most probable paths, each scored by a plain forward."""
  config = dataclasses.replace(tiny.LLAMA, scan_layers=scan_layers)
  target = tiny.random_model(config)
  early = tiny.Model(transformer.early_exit(config, 1), target.params)
  draft = tiny.noisy(target, 0.5)
  trees = []

  def propose(keys, context, state):
    tree, pending = _METHOD.greedy.drafter.propose(keys, context, state)
    jax.debug.callback(lambda *x: trees.append(x), state.tokens, state.length,
                       tree)
    return tree, pending

  drafter = _METHOD.greedy.drafter._replace(propose=propose)
  method = dj.Method("spied", None, dj.Pair(drafter, verifiers.match()))
  given = dict(target=target.lm, target_params=target.params, draft=draft.lm,
               draft_params=draft.params, max_new_tokens=3,
               sampling=dj.Sampling(temperature=0.0))
  plain, out = (dj.generate(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
                            method=x, **given)
                for x in (dj.methods.autoregressive(), method))
  jax.effects_barrier()
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  tokens, lengths, tree = jax.tree.map(np.asarray, trees[0])
  for row, length in enumerate(lengths):
    text = tuple(tokens[row, :length])
    chances = {}
    for x in _probs(draft, text).argsort()[::-1][:3]:
      chances[x,] = _probs(early, text)[x]
      for y in _probs(draft, (*text, x)).argsort()[::-1][:2]:
        chances[x, y] = chances[x,] * _probs(early, (*text, x))[y]
    assert {tuple(tree.tokens[row, 1:][mask[1:]])
            for mask in tree.mask[row, 1:]} == {
                *sorted(chances, key=chances.get)[-4:]}


def _probs(model, text):
  """Of the token after a text."""
  logits, _ = tiny.causal(model, np.array([text], np.int32))
  return np.asarray(jax.nn.softmax(logits[0, -1]))


@pytest.mark.cases(2)
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("config, kept", [
    (tiny.LLAMA, ()), (tiny.GEMMA, (1, 0)), (tiny.OPT, (2,))],
                         ids=["llama", "gemma", "opt"])
def test_two_halves_are_one_forward(config, kept, scan_layers):
  """Of some nodes of a tree, after a cache. Control: of other nodes."""
  config = dataclasses.replace(config, num_layers=3, full_every=min(
      config.full_every, 2), scan_layers=scan_layers)
  params = tiny.random_model(config).params
  lm = transformer.with_features(config, kept) if kept else (
      transformer.language_model(config))
  rng = np.random.default_rng(0)
  cache = prefill.prefill(32, 8, lm, params, prompts=np.array(tiny.PROMPTS),
                          lengths=np.array(tiny.LENGTHS))
  parents = np.tile([[-1, 0, 0, 1, 1, 2]], (3, 1))
  drafted = tree_lib.from_parents(
      jnp.asarray(rng.integers(0, config.vocab_size, (3, 6)), jnp.int32),
      jnp.asarray(parents, jnp.int32), jnp.ones((3, 6), bool))
  place = lambda x: cache.length[:, None] + tree_lib.positions(x)
  _, early = lm.halves.early(1, params, drafted.tokens, place(drafted), cache,
                             drafted.mask)

  def late(kept):
    some = best_first_trees.subtree(drafted, kept)
    return some, lm.halves.late(1, params, cache_lib.take_slots(early, kept),
                                place(some), cache, some.mask)

  some, actual = late(jnp.array([[0, 1, 4], [0, 2, 5], [0, 1, 2]]))
  expected = lm.forward(params, some.tokens, place(some), cache,
                        cache_lib.init_block(cache, 3), 0, some.mask)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(
      x, y, rtol=1e-4, atol=1e-5), actual, expected)
  _, other = late(jnp.array([[0, 1, 3], [0, 2, 5], [0, 1, 2]]))
  assert np.abs(other[0] - expected[0]).max() > 1e-2


def test_the_first_layers_run_once(monkeypatch):
  # XLA does not count those of native kernels.
  monkeypatch.setenv("DECODING_JAX_KERNELS", "xla")
  given = small_heads.models("medusa")
  counts = []
  for lm in (given["target"], given["target"]._replace(
      forward=functools.partial(given["target"].forward))):
    run = dj.begin(jax.random.key(1), np.array([[1, 2]]), np.array([2]),
                   method=_METHOD, max_new_tokens=4,
                   **{**given, "target": lm})
    step = jax.jit(lambda run: dj.step(run)[0])
    cost = step.lower(run).compile().cost_analysis()
    counts.append((cost[0] if isinstance(cost, list) else cost)["flops"])
  assert counts[0] < counts[1]
