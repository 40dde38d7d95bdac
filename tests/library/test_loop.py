"""A loop of one's own: the texts of `generate`, and what each step tells."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from decoding_jax.types import PAD
from support import helpers, tiny_models as tiny

GREEDY = dj.Sampling(temperature=0)
TREE = dj.methods.rsd_s(3, 2)
PROMPTS, LENGTHS = np.array([[0, 1], [2, 2], [4, 5]], np.int32), (2, 1, 2)
NEW, VOCAB, EOS = 6, 7, 3


@functools.lru_cache(maxsize=None)
def models():
  rng = np.random.default_rng(0)
  return [exactness.table_model(exactness.random_table(rng, VOCAB))
          for _ in range(2)]


def arguments(method, sampling=dj.Sampling(1.2, top_p=0.9), draft=True):
  (target, target_params), drafter = models()
  drafts = dict(zip(("draft", "draft_params"), drafter)) if draft else {}
  return dict(method=method, target=target, target_params=target_params,
              max_new_tokens=NEW, eos_id=EOS, sampling=sampling, **drafts)


def begin(method, *more, key=0, **kwargs):
  return dj.begin(jax.random.key(key), PROMPTS, np.array(LENGTHS),
                  **arguments(method, *more, **kwargs))


def generate(method, *more, key=0, **kwargs):
  return dj.generate(jax.random.key(key), PROMPTS, np.array(LENGTHS),
                     **arguments(method, *more, **kwargs))


def same(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.cases(2)
@pytest.mark.parametrize("method, sampling, has_tree", [
    (TREE, dj.Sampling(1.2, top_p=0.9), True), (TREE, GREEDY, True),
    (dj.methods.pearl(2), dj.Sampling(), False),
    (dj.methods.beam_search(3), GREEDY, False)],
    ids=["sampled", "greedy", "pearl", "beams"])
def test_steps_are_those_of_generate(method, sampling, has_tree):
  run, infos = begin(method, sampling), []
  while not run.done.all():
    before = run
    run, info = dj.step(run, log_probs=has_tree)
    infos.append(info)
    check_info(info, before, run, has_tree)
  expected = generate(method, sampling)
  same(dj.result(run), expected)
  assert len(infos) == int(expected.steps)
  texts = [list(itertools.chain(*(x.tokens[row, :x.count[row]].tolist()
                                  for x in infos))) for row in range(3)]
  assert texts == tiny.texts(expected, LENGTHS)
  # Once more: nothing is left to do.
  same(dj.result(dj.step(run)[0]), expected)


def check_info(info, before, after, has_tree):
  """What a step tells fits what it has done."""
  count = np.asarray(info.count)
  np.testing.assert_array_equal(count, after.lengths - before.lengths)
  assert ((count == 0) == before.done).all()
  order = np.arange(info.tokens.shape[1])[None]
  assert ((np.asarray(info.tokens) == PAD) == (order >= count[:, None])).all()
  if not has_tree:
    assert info.tree is info.verdict is info.log_probs is None
    return
  roots = np.take_along_axis(np.asarray(before.tokens),
                             np.asarray(before.lengths)[:, None] - 1, axis=1)
  np.testing.assert_array_equal(info.tree.tokens[:, :1], roots)
  for row in np.flatnonzero(count):
    # The path, and after it the token of the verdict; both may be cut.
    accepted = int(info.verdict.num_accepted[row])
    path = np.asarray(info.verdict.path[row, 1:accepted + 1])
    assert info.tree.valid[row, path].all()
    said = [*info.tree.tokens[row, path].tolist(), int(info.verdict.token[row])]
    assert info.tokens[row, :count[row]].tolist() == said[:count[row]]
    check_log_probs(info.tree.tokens[row], info.tree.valid[row],
                    info.log_probs[row], after.context.warper.greedy)


def check_log_probs(tokens, valid, log_probs, greedy):
  """Those of the table, after each node that is valid."""
  table = np.asarray(models()[0][1][0])[np.asarray(tokens)]
  best = table.argmax(axis=-1)
  probs = np.exp(log_probs)
  np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
  np.testing.assert_array_equal(probs.argmax(axis=-1)[valid], best[valid])
  # Top-p drops some tokens; the others keep their ratios.
  expected = np.exp(table / 1.2) * (probs > 0)
  if greedy:
    expected = np.eye(VOCAB)[best]
  expected /= expected.sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(probs[valid], expected[valid], atol=1e-5)


def test_jitted_scanned_and_mapped():
  def loop(key):
    run = dj.begin(key, PROMPTS, np.array(LENGTHS), **arguments(TREE))
    run, infos = jax.lax.scan(lambda run, _: dj.step(run), run, length=NEW)
    return dj.result(run), infos.count

  seeds = [0, 5]
  result, counts = jax.jit(jax.vmap(loop))(
      jnp.stack([jax.random.key(seed) for seed in seeds]))
  for i, seed in enumerate(seeds):
    helpers.check_same(jax.tree.map(lambda x: x[i], result),
                       generate(TREE, key=seed))
    assert int(result.steps[i]) == int(generate(TREE, key=seed).steps)
    np.testing.assert_array_equal(counts[i].sum(axis=0),
                                  result.stats.emitted[i])


def test_a_step_of_ones_own_program():
  run = begin(TREE)
  step = jax.jit(dj.step, static_argnames="log_probs")
  (after, info), (expected, told) = (
      f(run, log_probs=True) for f in (step, dj.step))
  helpers.check_same(dj.result(after), dj.result(expected))
  same(info.tokens, told.tokens)
  same(info.verdict, told.verdict)
  assert step(run)[1].log_probs is None


def test_a_step_under_strict_promotion():
  run = begin(TREE)
  expected = dj.result(dj.step(run)[0])
  with jax.numpy_dtype_promotion("strict"):
    same(dj.result(dj.step(run, log_probs=True)[0]), expected)


def test_arguments_are_checked():
  """At the beginning; and there are no log-probabilities without a tree."""
  run = begin(dj.methods.beam_search(3), GREEDY, draft=False)
  with pytest.raises(ValueError, match="log_probs=True: the method drafts no"):
    dj.step(run, log_probs=True)
  with pytest.raises(ValueError, match="draft=None: method rsd_s"):
    begin(TREE, draft=False)
