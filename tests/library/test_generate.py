"""The contract of `generate`, its program, and greedy decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.runtime import prefill as prefill_lib
from decoding_jax.testing import exactness
from support import tiny_models as tiny
from support.example_methods import depth, each, EACH, EACH_SAMPLING

GREEDY = dj.Sampling(temperature=0)
PLAIN, CHAIN = dj.methods.autoregressive(), dj.methods.speculative(3)
BEAM = dj.methods.rsd_s(3, 2)


def teacher_forced(model, out):
  """Log-probabilities of the texts by one forward without a cache."""
  tokens = np.maximum(out.tokens, 0)
  before = np.take_along_axis(tiny.log_probs(model, tokens)[:, :-1],
                              tokens[:, 1:, None], 2)
  return np.pad(before[..., 0], ((0, 0), (1, 0)))


@pytest.mark.cases(8)
@EACH
def test_contract(method):
  models = tiny.llama_models()
  out = tiny.generate(method, models, sampling=dj.Sampling(temperature=1.3))
  expected = teacher_forced(models.target, out)
  generated = np.asarray(out.log_probs) < 0
  assert generated.sum() == tiny.NEW * len(tiny.PROMPTS)
  np.testing.assert_allclose(out.log_probs, np.where(generated, expected, 0),
                             atol=1e-4)


def test_counts_of_full_trees():
  """Where no node lacks a child, what is tested follows from the path."""
  method = dj.methods.rsd_c((2, 2))
  out = tiny.generate(
      method, tiny.tables(*exactness.random_tables(4)), new=20,
      prompts=np.zeros((8, 1), np.int32), lengths=np.ones(8, np.int32))
  by_depth = np.asarray(out.stats.accepted_by_depth)
  tested = np.asarray(out.stats.extra["tested_by_rank"])
  accepted = np.asarray(out.stats.extra["accepted_by_rank"])
  # Every node of the path but those of the last level has tested a child.
  np.testing.assert_array_equal(tested[:, 0], by_depth @ [1, 2, 2])
  np.testing.assert_array_equal(tested[:, 1], tested[:, 0] - accepted[:, 0])
  assert (by_depth.sum(axis=0) > 0).all() and (accepted.sum(axis=0) > 0).all()


def simulate(target, draft, start, new, length, eos_id):
  """Counts of a chain on scripts: text, calls and calls by accepted drafts."""
  end, by_depth = start, [0] * (length + 1)
  while end < start + new and eos_id not in target[start:end]:
    accepted = 0
    while accepted < length and target[end + accepted] == draft[end + accepted]:
      accepted += 1
    by_depth[accepted] += 1
    end += accepted + 1
  text = target[start:min(end, start + new)]
  return (text[:text.index(eos_id) + 1] if eos_id in text else text), by_depth


def test_counts_on_scripts():
  """Certain models, of which it is known beforehand what is accepted."""
  length, rng = 3, np.random.default_rng(0)
  rows, new, size = 8, 11, 32
  target = rng.integers(0, 6, (rows, size))
  draft = np.where(rng.random((rows, size)) < 0.7, target, 5 - target)
  lengths = rng.integers(1, 5, rows)
  models = tiny.Models(tiny.scripted(target, 6), tiny.scripted(draft, 6))
  out = tiny.generate(dj.methods.speculative(length), models,
                      prompts=target[:, :4].astype(np.int32), lengths=lengths,
                      new=new, eos_id=5)
  expected = [simulate(t.tolist(), d.tolist(), n, new, length, 5)
              for t, d, n in zip(target, draft, lengths)]
  assert tiny.texts(out, lengths) == [text for text, _ in expected]
  np.testing.assert_array_equal(out.stats.accepted_by_depth,
                                [counts for _, counts in expected])
  assert len({len(text) for text, _ in expected}) > 2


def test_the_test_of_greedy_decoding_is_not_trivial():
  models = tiny.llama_models()
  expected = tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  assert all(len(set(text)) > 3 for text in expected), expected
  out = tiny.generate(dj.methods.speculative(3), models, sampling=GREEDY)
  assert (np.asarray(out.stats.accepted_by_depth).sum(axis=0) > 0).sum() > 2


@pytest.mark.cases(8)
@EACH
def test_greedy_equals_plain_forwards(method):
  """Of one program; an end falls on another position in every row."""
  models = tiny.llama_models()
  whole = tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  for eos_id in (None, whole[0][3], whole[1][4], whole[2][1]):
    out = tiny.generate(method, models, sampling=GREEDY, eos_id=eos_id)
    assert tiny.texts(out, tiny.LENGTHS) == [
        x[:x.index(eos_id) + 1] if eos_id in x else x for x in whole]


def test_greedy_with_several_ends():
  method = dj.methods.rsd_s(3, 2)
  models = tiny.llama_models()
  whole = tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  ends = whole[0][3], whole[1][4]
  out = tiny.generate(method, models, sampling=GREEDY, eos_id=ends)
  places = [[i for i, x in enumerate(row) if x in ends] for row in whole]
  assert {row[at[0]] for row, at in zip(whole, places) if at} == {*ends}
  assert tiny.texts(out, tiny.LENGTHS) == [
      row[:at[0] + 1] if at else row for row, at in zip(whole, places)]


@pytest.mark.parametrize("sampling", [dj.Sampling(), GREEDY],
                         ids=["sampled", "greedy"])
@EACH_SAMPLING
def test_a_target_that_drafts_for_itself_is_always_right(method, sampling):
  """The sharpest test of the draft cache: any slip of it costs acceptance."""
  target = tiny.llama_models().target
  out = tiny.generate(method, tiny.Models(target, target), sampling=sampling)
  calls = -(-tiny.NEW // (depth(method) + 1))
  expected = [[0] * depth(method) + [calls]] * len(tiny.PROMPTS)
  assert out.stats.accepted_by_depth.tolist() == expected


OPT_METHODS = [dj.methods.speculative(2), dj.methods.rsd_s(2, 2)]


@each(OPT_METHODS)
def test_greedy_of_the_other_family(method):
  """A target as long as the run exactly, and a drafter of another size."""
  models = tiny.opt_models()
  assert models.target.lm.max_length == tiny.PROMPTS.shape[1] + tiny.NEW
  out = tiny.generate(method, models, sampling=GREEDY)
  expected = tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  assert tiny.texts(out, tiny.LENGTHS) == expected
  by_depth = np.asarray(out.stats.accepted_by_depth).sum(axis=0)
  assert by_depth[0] > 0 and by_depth[1:].sum() > 0


def test_prompts_in_chunks(monkeypatch):
  """Padded wider than the models are long: padding takes no positions."""
  monkeypatch.setattr(prefill_lib, "CHUNK", 2)
  models = tiny.opt_models()
  out = tiny.generate(
      OPT_METHODS[0], models, sampling=GREEDY,
      prompts=np.pad(tiny.PROMPTS, ((0, 0), (0, tiny.OPT.max_length))))
  expected = tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  assert tiny.texts(out, tiny.LENGTHS) == expected


def test_a_drafter_with_a_shorter_window():
  """It drafts past its window, and the text is the target's all the same."""
  target, draft = tiny.opt_models()
  draft = draft._replace(lm=draft.lm._replace(max_length=4))
  out = tiny.generate(OPT_METHODS[0], tiny.Models(target, draft),
                      sampling=GREEDY)
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)


def test_depth_1_and_prompts_of_one_token():
  """No prefill; a draft block of the late token and the root alone."""
  target = tiny.opt_models().target
  prompts, lengths = tiny.PROMPTS[:, :1], np.ones(3, np.int32)
  new = tiny.OPT.max_length - 1
  out = tiny.generate(dj.methods.speculative(1), tiny.Models(target, target),
                      prompts=prompts, lengths=lengths, new=new,
                      sampling=GREEDY)
  expected = tiny.greedy(target, prompts, lengths, new)
  assert tiny.texts(out, lengths) == expected
  calls = -(-new // 2)
  assert out.stats.accepted_by_depth.tolist() == [[0, calls]] * 3


def table_models(seed=0):
  return tiny.tables(*(exactness.random_table(
      np.random.default_rng((seed, i)), 6) for i in range(2)))


def table_run(*, method=BEAM, prompts=np.zeros((2, 3), np.int32),
              lengths=np.array([1, 3]), seed=0, new=7, key=None, **kwargs):
  return tiny.generate(method, table_models(seed), prompts=prompts,
                       lengths=lengths, new=new, key=key, **kwargs)


def test_other_values_are_not_compiled_anew():
  size = tiny.generate_lib._generate.num_programs
  table_run()
  before = size()
  table_run(seed=1, key=jax.random.key(1))
  table_run(prompts=np.ones((2, 3), np.int32), lengths=np.array([2, 2]))
  table_run(sampling=dj.Sampling(temperature=0.3))
  table_run(sampling=dj.Sampling(temperature=np.array([0.5, 1.5])))
  table_run(eos_id=2)
  assert size() == before
  table_run(sampling=dj.Sampling(top_p=0.9))
  after = size()
  assert after == before + 1
  table_run(sampling=dj.Sampling(top_p=0.5, temperature=2.0))
  assert size() == after
  table_run(sampling=dj.Sampling(min_p=0.1))
  after = size()
  for min_p in (0.5, np.array([0.0, 0.3])):
    table_run(sampling=dj.Sampling(min_p=min_p))
  assert size() == after


def test_all_steps_of_a_stream_are_one_program():
  """Of parameters that are bound to a device, as a checkpoint's are."""
  models = tiny.Models(*(model._replace(params=jax.device_put(
      model.params, jax.devices()[0])) for model in tiny.llama_models()))
  size = tiny.generate_lib._resume.num_programs
  before = size()
  steps = list(dj.stream(
      jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
      method=dj.methods.speculative(3), max_new_tokens=12,
      **tiny.arguments(models)))
  assert len(steps) > 2 and size() == before + 1


def test_equal_trees_share_their_program():
  size = tiny.generate_lib._generate.num_programs
  table_run(method=dj.methods.rsd_s(2, 2), sampling=GREEDY)
  before = size()
  for method in dj.methods.specinfer(2, 2), dj.methods.spectr(2, 2):
    table_run(method=method, sampling=GREEDY)
  table_run(method=dj.methods.rsd_s(2, 2), seed=1, eos_id=1,
            sampling=dj.Sampling(temperature=0.0))
  assert size() == before
  assert dj.methods.speculative(2).sampled == dj.methods.rsd_c((1, 1)).sampled


def test_methods_share_their_prefill():
  table_run(method=CHAIN)
  size = prefill_lib.prefill.num_programs()
  table_run()
  assert prefill_lib.prefill.num_programs() == size


def test_inside_another_program():
  models = table_models()

  @jax.jit
  def run(key, prompts, lengths, params, temperature):
    return dj.generate(
        key, prompts, lengths, method=BEAM, target=models.target.lm,
        target_params=params[0], draft=models.draft.lm, draft_params=params[1],
        max_new_tokens=7, sampling=dj.Sampling(temperature=temperature))

  result = run(jax.random.key(0), jnp.zeros((2, 3), jnp.int32),
               jnp.array([1, 3]), [m.params for m in models], 1.0)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result,
               table_run())


def test_kinds_of_keys():
  expected = table_run().tokens
  rows = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0),
                                                 jnp.arange(2))
  for key in (jax.random.key_data(jax.random.key(0)), rows,
              jax.random.key_data(rows)):
    np.testing.assert_array_equal(table_run(key=key).tokens, expected)
  other = table_run(key=jax.random.key(1)).tokens
  assert not np.array_equal(other, expected)


@pytest.mark.parametrize("prompts, lengths", [
    (np.uint16, np.int32), (np.uint8, np.int32), (np.int8, np.int32),
    (np.int32, np.uint8), (np.int32, np.int16)])
def test_other_integers(prompts, lengths):
  out = tiny.generate(
      PLAIN, tiny.tables(np.roll(np.eye(6), 1, axis=1)), new=4, eos_id=4,
      prompts=np.array([[1, 2, 0, 0, 0], [3, 0, 0, 0, 0]], prompts),
      lengths=np.array([2, 1], lengths))
  assert tiny.texts(out, [2, 1]) == [[3, 4], [4]]


def equations(jaxpr):
  """All equations, those of inner programs included."""
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          yield from equations(inner)


def programs(method, models, **kwargs):
  """The jaxprs of both prefills and of the generation."""
  def run(key, prompts, lengths):
    return dj.generate(key, prompts, lengths, method=method, max_new_tokens=4,
                       **tiny.arguments(models), **kwargs)

  outer = jax.make_jaxpr(run)(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS)
  return [e.params["jaxpr"].jaxpr for e in equations(outer.jaxpr)
          if e.params.get("name") in ("prefill", "_generate")]


def loops(jaxpr):
  return [e for e in jaxpr.eqns if e.primitive.name == "while"]


def callbacks(jaxpr):
  return [e for e in equations(jaxpr) if "callback" in e.primitive.name]


@pytest.mark.cases(8)
@EACH
def test_one_loop_and_no_callback(method):
  result = programs(method, tiny.opt_models(), sampling=dj.Sampling(top_p=0.9))
  *prefills, generation = result
  assert len(prefills) == 1 + bool(method.sampled.drafter.calls)
  assert not any(map(loops, prefills)) and len(loops(generation)) == 1
  assert not any(map(callbacks, result))


def test_control_callbacks_and_loops_are_seen():
  lm = tiny.opt_models().target.lm

  def forward(params, tokens, *args):
    jax.debug.callback(lambda x: None, tokens)
    jax.lax.while_loop(lambda x: x < 3, lambda x: x + 1, tokens[0, 0])
    return lm.forward(params, tokens, *args)

  spied = tiny.Model(lm._replace(forward=forward),
                     tiny.opt_models().target.params)
  result = programs(CHAIN, tiny.Models(spied, spied))
  assert [len(loops(jaxpr)) for jaxpr in result] == [1, 1, 1]
  assert all(map(callbacks, result))


def test_bfloat16():
  config = dataclasses.replace(tiny.LLAMA, dtype="bfloat16", num_layers=1)
  model = tiny.random_model(config)
  out = tiny.generate(dj.methods.rsd_s(2, 2), tiny.Models(model, model),
                      sampling=GREEDY)
  assert out.log_probs.dtype == jnp.float32
  expected = teacher_forced(model, out)
  generated = np.asarray(out.log_probs) < 0
  # 8 bits of mantissa: the parts of a forward are rounded in another order.
  np.testing.assert_allclose(out.log_probs, np.where(generated, expected, 0),
                             atol=0.15)
