"""Tests of heads: exact whatever their weights, and no trace of rejections."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation.drafters import feature_head
from decoding_jax.testing import drafter_conformance, exactness
from models import transformer
from models.heads import block, chimera, clover, eagle, hydra
from models.transformer import quantization
from support import head_states, helpers, tiny_models as tiny
from support.small_heads import HEADS, LAYER, models, TARGET

_LENGTH = 4
# What may follow in each of two states, and the state after it.
_FOLLOWING = np.array([[1, 0, -1, 1], [-1, 0, 1, 1]])


def in_8_bits(name):
  """The same with a head whose matrices have 8 bits."""
  (kind, config, _), given = HEADS[name], models(name)
  narrow = {field: dataclasses.replace(getattr(config, field), weights="int8")
            for field in ("layer", "layers", "prefix")
            if getattr(config, field, None)}
  if hasattr(config, "weights"):
    narrow["weights"] = "int8"
  head = kind.head(dataclasses.replace(config, **narrow), TARGET)
  return {**given, "draft": head, "draft_params": quantization.tree(
      head.abstract_params(), given["draft_params"])}


@functools.lru_cache(maxsize=None)
def constrained_joint():
  """`[V] * L`, the constrained target's distribution of what follows."""
  texts = np.array([(1, 2, *x) for x in itertools.product(
      range(4), repeat=_LENGTH)], np.int32)
  logits = np.array(transformer.causal_logits(
      *tiny.random_model(TARGET), texts), np.float64)[:, 1:-1]
  states = np.zeros(len(texts), int)
  for at in range(_LENGTH):
    logits[:, at][_FOLLOWING[states] < 0] = -np.inf
    states = np.maximum(_FOLLOWING[states, texts[:, 2 + at]], 0)
  probs = jax.nn.log_softmax(logits)
  chosen = np.take_along_axis(np.asarray(probs), texts[:, 2:, None], 2)
  return np.exp(chosen.sum((1, 2))).reshape((4,) * _LENGTH)


_METHODS = {
    "medusa": dj.methods.rsd_c((2, 2)),
    "eagle1": dj.methods.rsd_s(2, 3, verification="traversal"),
    "eagle3": dj.methods.rsd_s(3, 3),
    "p-eagle": dj.methods.rsd_s(3, 3),
    "mtp": dj.methods.rsd_s(2, 3),
    "dflash": dj.methods.speculative(3, "block"),
    "dspark": dj.methods.rsd_s(3, 3),
    "domino": dj.methods.rsd_s(3, 3),
    "dflash2": dj.methods.rsd_s(3, 3, verification="traversal"),
    "ubtree": dj.methods.rsd_s(3, 3),
    "jetspec": dj.methods.opt_tree(4, 3, 2),
    "fspad": dj.methods.rsd_c((2, 2)),
    "hydra": dj.methods.rsd_s(3, 3),
    "hydra++": dj.methods.rsd_c((2, 1, 1)),
    "clover1": dj.methods.rsd_c((2, 2)),
    "clover2": dj.methods.rsd_s(3, 3),
    "chimera": dj.methods.rsd_s(3, 3)}
# Forwards of those that need one for each level.
_FORWARDS = {"eagle1": 3, "eagle3": 3, "mtp": 3, "fspad": 2, "chimera": 3}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", HEADS)
def test_texts_have_the_distribution_of_the_target(name):
  result, stats = head_states.fit(_METHODS[name], models(name))
  assert result >= exactness.MIN_P_VALUE
  # Of some use: more than a token a call.
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()
  calls = _FORWARDS.get(name, 1)
  np.testing.assert_array_equal(stats.draft_calls, calls * stats.target_calls)


def constrained(given):
  """The same with a processor around the target."""
  lm, params = dj.processors.apply(
      dj.processors.automaton(), dj.processors.table(_FOLLOWING),
      given["target"], given["target_params"])
  return {**given, "target": lm, "target_params": params}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["eagle3", "dspark"])
def test_a_head_on_the_hidden_states_of_a_processed_target(name):
  """Control: the distribution of the target alone is another one."""
  given = constrained(models(name))
  result, stats = head_states.fit(_METHODS[name], given,
                                  constrained_joint())
  assert result >= exactness.MIN_P_VALUE
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()
  assert head_states.fit(_METHODS[name], given)[0] < (
      helpers.MAX_P_VALUE_OF_CONTROL)


def test_each_feature_of_a_cache_is_that_of_its_owner():
  """Hidden states as without a processor, and states as without a head."""
  given = models("eagle3")
  plain, both = (tiny.Model(x["target"], x["target_params"])
                 for x in (given, constrained(given)))
  tokens, lengths = np.array([[1, 0, 3, 2], [0, 0, 1, 1]]), np.array([4, 3])
  expected, actual = (tiny.committed(x, tokens, lengths, 6).features
                      for x in (plain, both))
  assert set(actual) == {dj.HIDDEN_STATES, "processor"}
  jax.tree.map(np.testing.assert_array_equal, expected[dj.HIDDEN_STATES],
               actual[dj.HIDDEN_STATES])
  # The first token is the last one of the prompt, which is not read.
  waits, states = map(np.asarray, actual["processor"])
  assert not waits[0, :4].any()
  states = [states[row, :length].tolist() for row, length in enumerate(lengths)]
  assert states == [[0, 1, 1, 1], [0, 1, 0]]


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["eagle3", "hydra++"])
def test_texts_drafted_by_8_bits_have_it_too(name):
  given = in_8_bits(name)
  narrow = [x.dtype == jnp.int8 for x in jax.tree.leaves(given["draft_params"])]
  assert sum(narrow) >= 4
  result, stats = head_states.fit(_METHODS[name], given)
  assert result >= exactness.MIN_P_VALUE
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()


def test_control_most_probable_children_taken_for_samples():
  drafter = drafters.of_model(expanders.top_k((2, 2)))._replace(
      draws=dj.Draws.WITHOUT_REPLACEMENT)
  pair = dj.Pair(drafter, verifiers.recursive(replacement=False))
  result, _ = head_states.fit(dj.Method("wrong", pair, None),
                              models("dspark"))
  assert result < exactness.MIN_P_VALUE


@pytest.mark.long
@pytest.mark.parametrize("name", ["eagle3"])
def test_trees_and_state_are_as_a_drafter_has_them(name):
  drafter_conformance.check_drafter(
      _METHODS[name].sampled.drafter, rows=200, steps=2, **models(name))


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", HEADS)
def test_greedy_texts_are_those_of_the_target(name):
  given = {**models(name), "sampling": dj.Sampling(temperature=0.0),
           "max_new_tokens": 9}
  prompts, lengths = tiny.PROMPTS % 4, tiny.LENGTHS
  plain = dj.generate(jax.random.key(0), prompts, lengths,
                      method=dj.methods.autoregressive(), **given)
  out = dj.generate(jax.random.key(0), prompts, lengths,
                    method=_METHODS[name], **given)
  np.testing.assert_array_equal(out.tokens, plain.tokens)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", HEADS)
def test_rejected_tokens_leave_no_trace(name):
  """The state after some steps is that of the committed text, read at once."""
  context, [*_, (state, _)] = head_states.stepped(
      models(name), _METHODS[name].sampled, 3)
  assert len(set(np.asarray(state.length))) > 1
  texts = jnp.maximum(state.tokens[:, :int(state.length.max())], 0)
  again = context.replace(prompts=texts, prompt_lengths=state.length)
  plain = feature_head.init(again, state)
  for a, b in zip(jax.tree.leaves(cut(state.carry)),
                  jax.tree.leaves(cut(plain.carry))):
    scale = np.abs(b).max()
    np.testing.assert_allclose(a / scale, b / scale, atol=1e-5)


def cut(carry):
  """The state without what is in no row's cache."""
  def of_cache(x):
    if not isinstance(x, dj.Cache):
      return x
    inside = jnp.arange(x.keys[0].shape[-1])[None] < x.length[:, None]
    return x.replace(
        keys=tuple(jnp.where(inside[:, None, None], k, 0) for k in x.keys),
        values=tuple(jnp.where(inside[:, None, :, None], v, 0)
                     for v in x.values))

  return jax.tree.map(of_cache, carry, is_leaf=lambda x: isinstance(
      x, dj.Cache))


@pytest.mark.parametrize("make, message", [
    (lambda: clover.Config(LAYER, version=3), r"clover version=3: one of \(1"),
    (lambda: clover.Config(dataclasses.replace(LAYER, dim=18)),
     "num_heads=4 does not divide dim=18"),
    (lambda: clover.head(clover.Config(dataclasses.replace(LAYER, dim=32)),
                         TARGET), "dim=32, .* the dim of the target, 16"),
    (lambda: eagle.Config(LAYER, decoupled=True),
     "eagle decoupled=True, version=3: version=1 is needed"),
    (lambda: chimera.head(chimera.Config(dataclasses.replace(
        LAYER, scan_layers=True)), TARGET), "scan_layers=False are needed"),
    (lambda: chimera.Config(dataclasses.replace(LAYER, window=3)),
     "window=3: 0, a layer that attends to all"),
    (lambda: block.Config(LAYER, selector_rank=2, selector_top_k=2,
                          markov_rank=2), "none or 1 of these may be above 0"),
    (lambda: block.Config(LAYER, gru_hidden_dim=2), "none or 2 of these may"),
    (lambda: block.Config(LAYER, conv_kernel_size=2, conv_group_size=5),
     "conv_group_size=5 does not divide dim=16"),
    (lambda: block.Config(dataclasses.replace(LAYER, parallel=True),
                          conv_kernel_size=2, conv_group_size=4),
     "conv_kernel_size=2: layers with parallel have no convolutions"),
    (lambda: block.Config(dataclasses.replace(LAYER, window=3)),
     "block_size=8: at most window=3 of the layers, or causal=True"),
    (lambda: hydra.head(hydra.Config(), dataclasses.replace(
        TARGET, outputs=1)), "outputs=1, .* heads need a target"),
], ids=["version", "heads", "dim", "decoupled", "scanned", "window",
        "biases", "gru", "groups", "parallel", "short", "outputs"])
def test_architectures_that_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_head_and_target_that_do_not_fit():
  given = models("eagle3")
  prompts = np.ones((1, 2), np.int32)
  run = lambda method, **other: dj.generate(
      jax.random.key(0), prompts, [2], method=method, max_new_tokens=3,
      **{**given, **other})
  with pytest.raises(ValueError, match=r"widths \(16, 16, 16\), the target ke"):
    run(_METHODS["eagle3"], target=transformer.language_model(TARGET))
  with pytest.raises(ValueError, match="drafts 3 levels: the head drafts at m"):
    run(dj.methods.speculative(3), **models("dspark") | {
        "draft": models("medusa")["draft"]._replace(depth=2)} | {
            "draft_params": models("medusa")["draft_params"],
            "target": models("medusa")["target"]})
  with pytest.raises(ValueError, match="draft_params"):
    run(_METHODS["eagle3"], draft_params={"layer": {}})
