"""Parameters that do not fit their model are refused before it is called."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.validation import params as params_lib
from models import cacheless
from models import prompt_lookup
from models import tabular
from models import transformer
from support import tiny_models as tiny

V = tiny.LLAMA.vocab_size
SMALL = dataclasses.replace(tiny.LLAMA, dim=8, num_layers=1)
TABLE, TABLE_PARAMS = tabular.TabularLM(np.zeros((V, V)))


def _refuse(*args):
  raise AssertionError("A model was called.")


def generate(target, target_params, draft=None, draft_params=None):
  """Neither model can be called: `AssertionError` means that all was right."""
  untouched = [lm and lm._replace(init_cache=_refuse, forward=_refuse)
               for lm in (target, draft)]
  method = dj.methods.speculative(2) if draft else dj.methods.autoregressive()
  return dj.generate(jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
                     method=method, target=untouched[0],
                     target_params=target_params, draft=untouched[1],
                     draft_params=draft_params, max_new_tokens=4)


def llama():
  return tiny.random_model(tiny.LLAMA)


def changed(name, change):
  """Parameters of `llama` of which one is changed, None for none."""
  leaves, structure = jax.tree_util.tree_flatten_with_path(llama().params)
  names = [transformer.param_name(path) for path, _ in leaves]
  assert name in names
  results = [change(x) if other == name else x
             for other, (_, x) in zip(names, leaves)]
  return jax.tree.unflatten(structure, results)


HEAD = next(name for name in (
    transformer.param_name(path) for path, _ in
    jax.tree_util.tree_leaves_with_path(
        transformer.abstract_params(tiny.LLAMA))) if "kernel" in name)


def test_control_right_parameters_reach_the_models():
  for arguments in ((*llama(), *tiny.random_model(SMALL)),
                    (TABLE, TABLE_PARAMS, prompt_lookup.language_model(V), ()),
                    (*llama(), TABLE, TABLE_PARAMS)):
    with pytest.raises(AssertionError, match="A model was called"):
      generate(*arguments)


def test_other_types_of_floats_are_left_to_the_model():
  halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), llama().params)
  with pytest.raises(AssertionError, match="A model was called"):
    generate(llama().lm, halves)


def test_those_of_the_draft():
  with pytest.raises(ValueError, match=(
      r"^target_params do not fit the target: \S+ has shape \(.*8.*\), the "
      r"model needs \(.*16.*\)\.$")):
    generate(llama().lm, tiny.random_model(SMALL).params)


def test_those_of_the_target():
  with pytest.raises(ValueError, match="^draft_params do not fit the draft: "):
    generate(*llama(), tiny.random_model(SMALL).lm, llama().params)


@pytest.mark.parametrize("change, words", [
    (lambda x: None, f"{HEAD} is missing, the model needs an array of shape"),
    (lambda x: x[..., :3], f"{HEAD} has shape .*3.*, the model needs"),
    (lambda x: np.zeros(x.shape, np.int32),
     f"{HEAD} has integers, the model needs floats"),
], ids=["missing", "cut", "integers"])
def test_one_leaf(change, words):
  with pytest.raises(ValueError,
                     match=f"^target_params do not fit the target: {words}"):
    generate(llama().lm, changed(HEAD, change))


def test_a_transposed_leaf():
  name = "embedding"
  with pytest.raises(ValueError, match=(
      rf"{name} has shape \(16, 13\), the model needs \(13, 16\)")):
    generate(llama().lm, changed(name, lambda x: x.T))


def test_one_leaf_too_many():
  with pytest.raises(ValueError, match="more/x is not a parameter of the mod"):
    generate(llama().lm, {**llama().params, "more": {"x": np.zeros(3)}})


def test_a_dict_for_a_table():
  with pytest.raises(ValueError, match=(
      "target_params do not fit the target: a dict is given, the model needs a "
      "TabularParams")):
    generate(TABLE, {"table": TABLE_PARAMS.table})


def test_parameters_for_a_model_without():
  with pytest.raises(ValueError, match="^draft_params .*: table is not a param|"
                     "^draft_params .*: a TabularParams is given"):
    generate(TABLE, TABLE_PARAMS, prompt_lookup.language_model(V),
             TABLE_PARAMS)


@pytest.mark.parametrize("leaf, kind", [
    (lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), "ShapeDtypeStruct"),
    (lambda x: "x", "str")], ids=["shapes", "text"])
def test_what_is_no_array(leaf, kind):
  with pytest.raises(ValueError, match=(
      f"^target_params/{HEAD} is of type {kind}: an array is needed")):
    generate(llama().lm, changed(HEAD, leaf))


def test_a_processed_model_needs_the_parameters_of_both():
  wrapped, params = dj.processors.apply(dj.processors.min_new_tokens(1, 0), (),
                                        *llama())
  with pytest.raises(AssertionError, match="A model was called"):
    generate(wrapped, params)
  with pytest.raises(ValueError, match="dict is given, .* AppliedParams"):
    generate(wrapped, llama().params)
  with pytest.raises(ValueError, match="target: model/.* the model needs"):
    generate(wrapped, params._replace(model=tiny.random_model(SMALL).params))


def test_a_model_that_does_not_say_takes_any():
  lm = cacheless.language_model(_refuse, V)
  assert lm.abstract_params is None
  with pytest.raises(AssertionError, match="A model was called"):
    generate(lm, {"any": np.zeros(3)})


def test_equal_shapes_are_compared_once():
  calls = []

  def abstract_params():
    calls.append(1)
    return TABLE_PARAMS

  lm = TABLE._replace(abstract_params=abstract_params)
  for value in (0, 1):
    params_lib.check("target_params", lm, tabular.TabularLM(
        np.full((V, V), value))[1])
  assert len(calls) == 1
