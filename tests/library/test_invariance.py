"""A row depends on its key and prompt alone, however it is computed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.example_methods import each
from support.helpers import check_same

METHODS = [dj.methods.rsd_s(3, 2), dj.methods.specinfer(2, 2)]
EACH = each(METHODS)
SAMPLING = dj.Sampling(temperature=1.3)
KEYS = jax.random.split(jax.random.key(7), 3)


def run(method, keys=KEYS, rows=slice(None), prompts=tiny.PROMPTS,
        lengths=tiny.LENGTHS, **kwargs):
  return tiny.generate(method, tiny.llama_models(), key=keys[rows],
                       prompts=prompts[rows], lengths=lengths[rows],
                       sampling=SAMPLING, **kwargs)


def test_a_row_alone_and_in_a_batch():
  expected = run(METHODS[0])
  for row in range(3):
    alone = slice(row, row + 1)
    check_same(run(METHODS[0], rows=alone), expected, alone)


@EACH
def test_a_permuted_batch(method):
  order = np.array([2, 0, 1])
  check_same(run(method, rows=order), run(method), order)


def test_a_row_does_not_depend_on_its_neighbours():
  prompts, keys = tiny.PROMPTS.copy(), KEYS[jnp.array([1, 1, 0])]
  prompts[::2] = 12 - prompts[::2]
  out = run(METHODS[0], keys=keys, prompts=prompts,
            lengths=np.array([2, 3, 4], np.int32))
  middle = slice(1, 2)
  check_same(helpers.of_rows(out, middle), run(METHODS[0]), middle)


def test_rows_of_one_prompt_differ_by_their_keys():
  """A negative control: the key is used."""
  prompts = np.repeat(tiny.PROMPTS[:1], 3, axis=0)
  tokens = np.asarray(run(METHODS[0], prompts=prompts,
                          lengths=np.full(3, 5, np.int32)).tokens)
  assert len(np.unique(tokens, axis=0)) == 3


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_kinds(impl):
  """In a batch their own numbers would be those of the first row's key."""
  expected = run(METHODS[0], keys=jax.vmap(jax.random.key)(np.arange(3)))
  keys = jax.vmap(lambda seed: jax.random.key(seed, impl=impl))(np.arange(3))
  check_same(run(METHODS[0], keys=keys), expected)
  alone = slice(2, 3)
  check_same(run(METHODS[0], keys=keys, rows=alone), expected, alone)


def test_a_row_that_ends_early_does_not_disturb_the_others():
  expected = run(METHODS[0])
  texts = tiny.texts(expected, tiny.LENGTHS)
  short, long, eos_id = next(
      (i, j, x) for i, j in itertools.permutations(range(3), 2)
      for x in texts[i][:-1] if x not in texts[j])
  out = run(METHODS[0], eos_id=eos_id)
  assert int(out.lengths[short]) < int(expected.lengths[short])
  rows = slice(long, long + 1)
  check_same(helpers.of_rows(out, rows), expected, rows)


def test_padding_does_not_matter():
  """Neither what stands behind a prompt, nor how far it goes."""
  padded = np.where(np.arange(5) < tiny.LENGTHS[:, None], tiny.PROMPTS, -1)
  expected = run(METHODS[0])
  check_same(run(METHODS[0], prompts=padded), expected)
  wide = np.pad(tiny.PROMPTS, ((0, 0), (0, 3)), constant_values=9)
  out = run(METHODS[0], prompts=wide)
  assert tiny.texts(out, tiny.LENGTHS) == tiny.texts(expected, tiny.LENGTHS)
  jax.tree.map(np.testing.assert_array_equal, out.stats, expected.stats)


def table_run():
  return tiny.generate(
      dj.methods.rsd_s(2, 1), tiny.tables(*exactness.random_tables(3)), new=2,
      prompts=np.array([[0, 1], [2, 2]], np.int32), lengths=np.array([2, 1]),
      sampling=SAMPLING)


@pytest.mark.parametrize("setting", [
    jax.disable_jit, functools.partial(jax.enable_x64, True)],
                         ids=["not compiled", "x64"])
def test_compiled_or_not_and_numbers_of_64_bits(setting):
  expected = table_run()
  with setting():
    check_same(table_run(), expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_under_numbers_of_64_bits(temperature):
  run = lambda: tiny.texts(tiny.generate(
      dj.methods.rsd_s(2, 2), tiny.llama_models(), new=6,
      sampling=dj.Sampling(temperature)), tiny.LENGTHS)
  expected = run()
  with jax.enable_x64(True):
    assert run() == expected


@pytest.mark.cases(6)
@pytest.mark.parametrize("setting", [
    lambda: jax.enable_x64(True),
    lambda: jax.numpy_dtype_promotion("strict")], ids=["x64", "strict"])
@each([method for found in dj.methods.examples().values() for method in found
       if not tree_decoder.as_decoder(
           method.greedy or method.sampled).needs_features])
def test_types_under_other_settings_of_jax(method, setting):
  rng = np.random.default_rng(0)
  models = [exactness.table_model(exactness.random_table(rng, 5))
            for _ in range(2)]
  # Of 64 bits, where there are any.
  models = tiny.Models(*(tiny.Model(lm, (np.asarray(table, np.float64),))
                         for lm, (table,) in models))
  decoder = tree_decoder.as_decoder(method.greedy or method.sampled)
  rewarded = decoder.needs_reward
  drafter = dict(draft=models.draft.lm, draft_params=models.draft.params) if (
      decoder.needs_draft) else {}
  rewards = dict(reward=tiny.table_reward(), reward_params=np.float32(1),
                 constraints=np.zeros((2, tiny.STATES), np.float32))

  def trace():
    return jax.eval_shape(lambda key: dj.generate(
        key, np.array([[0, 1], [2, 2]], np.int32), np.array([2, 1]),
        method=method, target=models.target.lm,
        target_params=models.target.params, max_new_tokens=4,
        sampling=dj.Sampling(0.0 if method.greedy else 1.0), **drafter,
        **(rewards if rewarded else {})), jax.random.key(0))

  expected = trace()
  with setting():
    assert trace() == expected


_ON_EIGHT_DEVICES = """
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny

def run(place, place_params):
  models = tiny.llama_models()
  prompts = np.tile(tiny.PROMPTS, (3, 1))[:8]
  lengths = np.tile(tiny.LENGTHS, 3)[:8]
  params = [place_params(model.params) for model in models]
  return dj.generate(
      jax.random.key(0), place(prompts), place(lengths),
      method=dj.methods.rsd_s(2, 2), target=models.target.lm,
      target_params=params[0], draft=models.draft.lm, draft_params=params[1],
      max_new_tokens=tiny.NEW, sampling=dj.Sampling(temperature=1.3))

def check(kind, one):
  mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  everywhere = NamedSharding(mesh, PartitionSpec())
  eight = run(lambda x: jax.device_put(x, rows),
              lambda x: jax.device_put(x, everywhere))
  assert len(eight.tokens.sharding.device_set) == 8
  jax.tree.map(np.testing.assert_array_equal, eight.stats, one.stats)
  np.testing.assert_array_equal(eight.tokens, one.tokens)
  np.testing.assert_allclose(eight.log_probs, one.log_probs, atol=1e-5)

assert len(jax.devices()) == 8
one = run(jax.numpy.asarray, lambda x: x)
assert len(one.tokens.sharding.device_set) == 1
assert len({tuple(row) for row in np.asarray(one.tokens)}) == 8
check(AxisType.Auto, one)
print("equal", flush=True)
try:
  check(AxisType.Explicit, one)
except ValueError as e:
  print("refused" if "AxisType.Auto" in str(e) else e, flush=True)
"""


@functools.lru_cache(maxsize=None)
def on_eight_devices():
  return helpers.start("-c", _ON_EIGHT_DEVICES, devices=8).communicate()


@pytest.mark.parametrize("line", ["equal", "refused"])
def test_one_device_or_eight(line):
  """A mesh of explicit axes is refused in words; any other makes no odds."""
  output, errors = on_eight_devices()
  assert line in output.splitlines(), errors
