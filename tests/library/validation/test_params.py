"""Parameters that do not fit their model are refused before it is called."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.validation import params as params_lib
from models import cacheless, prompt_lookup, tabular, transformer
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
  """Other types of floats are left to the model; one that does not say which
  parameters it needs takes any."""
  halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), llama().params)
  silent = cacheless.language_model(_refuse, V)
  assert silent.abstract_params is None
  for arguments in ((*llama(), *tiny.random_model(SMALL)),
                    (TABLE, TABLE_PARAMS, prompt_lookup.language_model(V), ()),
                    (*llama(), TABLE, TABLE_PARAMS), (llama().lm, halves),
                    (silent, {"any": np.zeros(3)})):
    with pytest.raises(AssertionError, match="A model was called"):
      generate(*arguments)


def refused(words, *arguments):
  with pytest.raises(ValueError, match=words):
    generate(*arguments)


def test_parameters_of_other_models():
  refused(r"^target_params do not fit the target: \S+ has shape \(.*8.*\), the "
          r"model needs \(.*16.*\)\.$", llama().lm,
          tiny.random_model(SMALL).params)
  refused("^draft_params do not fit the draft: ", *llama(),
          tiny.random_model(SMALL).lm, llama().params)
  refused("more/x is not a parameter of the mod", llama().lm,
          {**llama().params, "more": {"x": np.zeros(3)}})
  refused("target_params do not fit the target: a dict is given, the model "
          "needs a TabularParams", TABLE, {"table": TABLE_PARAMS.table})
  # A model that has none.
  refused("^draft_params .*: table is not a param|"
          "^draft_params .*: a TabularParams is given", TABLE, TABLE_PARAMS,
          prompt_lookup.language_model(V), TABLE_PARAMS)


_MISFIT = "^target_params do not fit the target: "


@pytest.mark.parametrize("name, change, words", [
    (HEAD, lambda x: None,
     f"{_MISFIT}{HEAD} is missing, the model needs an array of shape"),
    (HEAD, lambda x: x[..., :3],
     f"{_MISFIT}{HEAD} has shape .*3.*, the model needs"),
    (HEAD, lambda x: np.zeros(x.shape, np.int32),
     f"{_MISFIT}{HEAD} has integers, the model needs floats"),
    ("embedding", lambda x: x.T,
     r"embedding has shape \(16, 13\), the model needs \(13, 16\)"),
    (HEAD, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
     f"^target_params/{HEAD} is of type ShapeDtypeStruct: an array is needed"),
    (HEAD, lambda x: "x",
     f"^target_params/{HEAD} is of type str: an array is needed")],
    ids=["missing", "cut", "integers", "transposed", "shapes", "text"])
def test_one_leaf(name, change, words):
  refused(words, llama().lm, changed(name, change))


def test_a_processed_model_needs_the_parameters_of_both():
  wrapped, params = dj.processors.apply(dj.processors.min_new_tokens(1, 0), (),
                                        *llama())
  with pytest.raises(AssertionError, match="A model was called"):
    generate(wrapped, params)
  refused("dict is given, .* AppliedParams", wrapped, llama().params)
  refused("target: model/.* the model needs", wrapped,
          params._replace(model=tiny.random_model(SMALL).params))


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
