"""SpecInfer with several draft models: exact, and drawn as it says."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.testing import drafter_conformance, enumeration, exactness
from decoding_jax.types import with_forward
from models import guided, prompt_lookup
from support import helpers, tiny_models as tiny

V, ROWS, LENGTH = 4, 20_000, 4
RULE = verifiers.multi_step().rule


def tables(count, vocab_size=V):
  rng = np.random.default_rng(7)
  return [exactness.random_table(rng, vocab_size) for _ in range(1 + count)]


def mixture_of(*distributions):
  lms, params = zip(*map(exactness.table_model, distributions))
  return guided.mixture(lms), params


def fit(method, target, *distributions):
  """The fit of texts that several tables draft."""
  lm, params = exactness.table_model(target)
  draft, draft_params = mixture_of(*distributions)
  out = dj.generate(
      jax.random.key(0), np.zeros((ROWS, 1), np.int32),
      np.ones(ROWS, np.int32), method=method, target=lm, target_params=params,
      draft=draft, draft_params=draft_params, max_new_tokens=LENGTH)
  counts = exactness.count(out.tokens[:, 1:], V)
  return exactness.p_value(
      counts, exactness.joint_distribution(target, 0, LENGTH)), out


def emitted(rule, target, drafts):
  """Enumerates one node in float64: child k is a sample of distribution k."""
  size, probs = len(drafts), np.zeros(len(target))
  tokens = np.array(list(itertools.product(range(len(target)), repeat=size)))
  reach = np.prod([d[tokens[:, k]] for k, d in enumerate(drafts)], axis=0)
  with jax.enable_x64(True):
    found = jax.jit(jax.vmap(functools.partial(
        enumeration.acceptance, rule, jnp.asarray(target),
        jnp.stack(drafts))))(tokens, np.ones_like(tokens, bool))
  for x, weight, chance, rest in zip(tokens, reach, *map(np.asarray, found)):
    for k in range(size):
      probs[x[k]] += weight * chance[k]
      weight *= 1 - chance[k]
    probs += weight * rest
  return probs


def swapped(uniforms, target, draft, tokens, valid):
  """Tests children against each other's distributions."""
  return RULE(uniforms, target, draft[::-1], tokens, valid)


@pytest.mark.parametrize("size, zeros", [(1, 0), (2, 0), (3, 0), (2, 1)])
def test_the_rule_keeps_the_distribution(size, zeros):
  """Control: with the distributions in another order it does not."""
  rng = np.random.default_rng((size, zeros))
  target, *drafts = (exactness.random_probs(rng, V, zeros)
                     for _ in range(1 + size))
  np.testing.assert_allclose(emitted(RULE, target, drafts), target, atol=1e-12)
  if size > 1:
    assert np.abs(emitted(swapped, target, drafts) - target).max() > 1e-3


def test_worked_example_of_the_docstring():
  rank, rest = RULE(
      jnp.array([0.9, 0.9]), jnp.array([0.5, 0.3, 0.2]),
      jnp.array([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2]]), jnp.array([1, 0]),
      jnp.array([True, True]))
  assert rank == 1
  np.testing.assert_allclose(rest, [1, 0, 0], atol=1e-6)


@pytest.mark.cases(1)
@pytest.mark.parametrize("arguments, count", [
    (dict(num_paths=1, depth=2), 2), (dict(expansion=(2, 1)), 2),
    (dict(num_paths=1, depth=2), 3)])
def test_joint_distribution(arguments, count):
  """Control: children that are tested against another model's distribution."""
  method = dj.methods.specinfer(**arguments, models=count)
  given = tables(count)
  p_value, out = fit(method, *given)
  assert p_value >= exactness.MIN_P_VALUE
  assert (out.stats.draft_calls == 2 * out.stats.target_calls).all()
  wrong = dj.Pair(method.sampled.drafter,
                  dj.Verifier(swapped, frozenset(dj.Draws)))
  p_value, _ = fit(dj.Method("wrong", wrong, None), *given)
  assert p_value < helpers.MAX_P_VALUE_OF_CONTROL


def test_children_are_samples_of_their_models():
  """Control: the same trees, said to be of the models in another order."""
  draft, params = mixture_of(*tables(2, 6)[1:])
  drafter = drafters.of_model(expanders.iid_tree((2, 1), 2))
  check = lambda x: drafter_conformance.check_drafter(
      x, draft=draft, draft_params=params, rows=300, steps=2)
  check(drafter)

  def propose(*args):
    tree, pending = drafter.propose(*args)
    others = jnp.where(tree.sources < 2, 1 - tree.sources, tree.sources)
    return tree.replace(sources=others), pending

  with pytest.raises(AssertionError, match="OF_SEVERAL, but the children"):
    check(drafter._replace(propose=propose))


def test_of_one_model_it_is_rejection_with_replacement():
  target, draft = tables(1)
  one = dj.Method("one", dj.Pair(
      dj.methods.specinfer(2, 2).sampled.drafter._replace(
          draws=dj.Draws.OF_SEVERAL), verifiers.recursive(True)), None)
  texts = [exactness.frequencies(x, target, draft, 200, 4)[0] for x in (
      dj.methods.specinfer(2, 2), one)]
  np.testing.assert_array_equal(*texts)


def test_it_finds_what_either_model_knows():
  """One model is right after two of four tokens, the other after the others."""
  target = np.roll(np.eye(V), 1, axis=1) * 0.96 + 0.01
  wrong = np.roll(np.eye(V), 2, axis=1) * 0.96 + 0.01
  first = np.arange(V)[:, None] < 2
  given = np.where(first, target, wrong), np.where(first, wrong, target)
  for temperature in (0.0, 1.0):
    lm, params = exactness.table_model(target)
    calls = []
    for parts in (given[:1], given):
      draft, draft_params = (mixture_of(*parts) if len(parts) > 1 else
                             exactness.table_model(*parts))
      out = dj.generate(
          jax.random.key(0), np.zeros((64, 1), np.int32),
          np.ones(64, np.int32), method=dj.methods.specinfer(
              1, 1, models=len(parts)), target=lm, target_params=params,
          draft=draft, draft_params=draft_params, max_new_tokens=12,
          sampling=dj.Sampling(temperature))
      calls.append(float(out.stats.target_calls.mean()))
    # 12 tokens in 6 calls, instead of 9.
    assert calls[1] < 0.8 * calls[0]


def test_models_of_different_kinds_and_their_caches():
  """The target drafts for itself next to a lookup: its chain is right."""
  models = tiny.opt_models()
  lookup = prompt_lookup.language_model(models.target.lm.vocab_size)
  pair = guided.mixture((lookup, models.target.lm))
  draft = tiny.Model(pair, ((), models.target.params))
  method = dj.methods.specinfer(1, 2, models=2)
  ours = tiny.generate(method, tiny.Models(models.target, draft),
                       sampling=dj.Sampling(0.0))
  plain = tiny.generate(dj.methods.autoregressive(), models,
                        sampling=dj.Sampling(0.0))
  np.testing.assert_array_equal(plain.tokens, ours.tokens)
  assert (ours.stats.target_calls == -(-tiny.NEW // 3)).all()


def test_what_is_done_to_a_forward_is_done_to_that_of_each():
  draft, params = mixture_of(*tables(2)[1:])
  cache = draft.init_cache(1, 0)
  block = draft.init_cache(1, 1)
  doubled = with_forward(draft, lambda forward: lambda *args: jax.tree.map(
      lambda x: 2 * x, forward(*args)[0]), max_length=3)
  args = (params, jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32),
          cache, block, 0, jnp.ones((1, 1, 1), bool))
  np.testing.assert_array_equal(doubled.forward(*args),
                                2 * draft.forward(*args)[0])
  np.testing.assert_array_equal(doubled.forward_each(*args),
                                2 * np.stack(draft.forward_each(*args)[0]))
  assert with_forward(exactness.table_model(tables(1)[0])[0],
                      lambda forward: forward).forward_each is None


def test_pairs_that_do_not_fit():
  target, draft = tables(1)
  with pytest.raises(ValueError, match="draft is of 1 model.s.: .* needs 2"):
    dj.testing.check(dj.methods.specinfer(1, 2, models=2), target, draft,
                     rows=2)
  with pytest.raises(ValueError, match="Draws|draws"):
    verifiers.pair(expanders.iid_tree((2,), 2), verifiers.recursive(True))
