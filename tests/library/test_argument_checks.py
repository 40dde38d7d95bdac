"""What does not fit is refused before a model is called."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import argument_checks, types
import decoding_jax as dj
from decoding_jax.speculation import expanders
from decoding_jax.speculation.verifiers import traversal
from decoding_jax.validation import prompts as prompts_lib
from models import tabular

V = 4


def _refuse(*args):
  raise AssertionError("A model was called.")


# No check may get as far as calling it.
UNTOUCHED = types.LanguageModel(_refuse, _refuse, V, max_length=8)
METHOD = dj.methods.rsd_s(2, 2)
ALONE = dj.Method("alone", None, METHOD.greedy)
WARM = dj.Method("warm", METHOD.sampled, None)
REWARDED = dj.Method("rewarded", *(
    dj.Decoder(_refuse, _refuse, max_slots_ahead=1, needs_reward=True),) * 2)
REWARD = dj.Reward(_refuse, _refuse, _refuse)
ARGUMENTS = dict(
    prompts=np.ones((2, 3), np.int32), prompt_lengths=np.array([3, 1]),
    method=METHOD, target=UNTOUCHED, target_params=(), draft=UNTOUCHED,
    draft_params=(), max_new_tokens=5)


def generate(key=None, **changes):
  arguments = {**ARGUMENTS, **changes}
  key = jax.random.key(0) if key is None else key
  return dj.generate(key, arguments.pop("prompts"),
                     arguments.pop("prompt_lengths"), **arguments)


def refused(words, **changes):
  with pytest.raises(ValueError) as error:
    generate(**changes)
  for word in words:
    assert word in str(error.value)


def test_control_what_fits_reaches_the_models():
  """Padding takes no positions; data of a key is a key; functions whose
  arguments Python does not know may be anything that can be called."""
  for right in (
      {}, dict(prompts=np.ones((2, 9), np.int32)),
      dict(key=np.zeros(2, np.uint32)),
      dict(method=dj.methods.autoregressive(), draft=None, draft_params=None),
      dict(target=UNTOUCHED._replace(init_cache=functools.partial(_refuse)),
           reward=REWARD._replace(value=jnp.add, maximum=np.float32(3))),
      *(dict(method=method, sampling=dj.Sampling(temperature))
        for method, temperature in ((ALONE, 0), (WARM, 0.5)))):
    with pytest.raises(AssertionError, match="A model was called"):
      generate(**right)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_forgotten_parameters(name):
  refused([f"{name}_params=None", f"parameters of the {name} are needed"],
          **{f"{name}_params": None})


@pytest.mark.parametrize("prompts, lengths, words", [
    ([[1, 2], [3]], [2, 1], ["prompts", "padded on the right"]),
    (np.ones((2, 3)), [3, 1], ["prompts", "(2, 3)", "float64"]),
    (np.ones(3, int), [3], ["prompts", "(3,)", "2 axes"]),
    (np.ones((2, 3), int), [3.0, 1.0], ["prompt_lengths", "float64"]),
    (np.ones((2, 3), int), [[3, 1]], ["prompt_lengths", "(1, 2)", "1 axes"]),
    (np.ones((2, 3), int), [3, 1, 2], ["(2, 3)", "(3,)", "[B, P] and [B]"]),
    (np.ones((0, 3), int), np.ones(0, int), ["(0, 3)", "neither empty"]),
    (np.ones((2, 0), int), [1, 1], ["(2, 0)", "neither empty"]),
    (np.ones((2, 3), int), [3, 0], ["prompt_lengths[1]=0", "1 to 3"]),
    (np.ones((2, 3), int), [4, 1], ["prompt_lengths[0]=4", "1 to 3"]),
    (np.ones((2, 3), int), [3, -1], ["prompt_lengths[1]=-1"]),
    ([[1, 2, 3], [1, 2, 4]], [3, 3], ["prompts[1, 2]=4", "0 to 3"]),
    ([[1, -1, 3], [1, 2, 2]], [3, 3], ["prompts[0, 1]=-1", "0 to 3"]),
    ([[1, 2], [3]], [2, 1], ["prompts is no array"]),
    (["a", "b"], [1, 1], ["prompts", "(2,)", "type <U1"]),
])
def test_prompts(prompts, lengths, words):
  refused(words, prompts=prompts, prompt_lengths=lengths)


@pytest.mark.parametrize("name, value, words", [
    ("method", "rsd_s", ["type str", "dj.Method"]),
    ("method", dj.methods.rsd_s, ["type function", "dj.Method"]),
    ("target", (UNTOUCHED, None), ["type tuple", "dj.LanguageModel"]),
    ("draft", "gpt2", ["type str", "dj.LanguageModel", "or None"]),
    ("sampling", 0.7, ["type float", "dj.Sampling"]),
    ("draft_sampling", {"top_k": 3}, ["type dict", "dj.Sampling", "or None"]),
    ("reward", len, ["dj.Reward", "or None"]),
])
def test_kinds(name, value, words):
  refused([f"{name} is of type", *words], **{name: value})


@pytest.mark.parametrize("contract, field, values, words", [
    ("reward", "maximum", [None, "1", np.nan, 1j], "a number, or inf"),
    ("reward", "init", [None, 3, len], "(params, constraint, prompt, length)"),
    ("reward", "advance", [lambda state: state], "state, tokens, valid)"),
    ("reward", "value", [True], "a function of (params, constraint, state)"),
    ("target", "vocab_size", [None, "4", 4.0, 0, True], "integer from 1 on"),
    ("draft", "max_length", [None, -1, "8"], "an integer from 0 on"),
    ("target", "forward", [None, lambda tokens: tokens], "block, slot, mask)"),
    ("draft", "init_cache", ["x"], "a function of (batch, capacity)"),
    ("target", "after_prompt", [1], "(params, cache), or None,"),
    ("method", "name", [None, 3], "a string"),
    ("method", "greedy", ["top_k", 0], "what dj.pair makes"),
])
def test_fields(contract, field, values, words):
  given = {**ARGUMENTS, "reward": REWARD}[contract]
  for value in values:
    refused([f"{contract}.{field}={value!r}: ", words],
            **{contract: given._replace(**{field: value})})


@pytest.mark.parametrize("part, field, value, words", [
    ("drafter", "propose", None, "a function of (keys, context, "),
    ("drafter", "draws", "yes", "one of dj.Draws, such as"),
    ("verifier", "rule", lambda: 0, "target, draft, children, valid)"),
    ("verifier", "takes", 2, "a frozenset of dj.Draws"),
    ("verifier", "takes", frozenset({1}), "a frozenset of dj.Draws"),
    ("verifier", "walk", lambda: 0, "(key, layout, tree, logits, warper), or "),
])
def test_fields_of_pairs(part, field, value, words):
  wrong = getattr(METHOD.sampled, part)._replace(**{field: value})
  pair = METHOD.sampled._replace(**{part: wrong})
  refused([f"method.sampled.{part}.{field}={value!r}: ", words],
          method=METHOD._replace(sampled=pair))
  with pytest.raises(ValueError, match=f"^{part}.{field}="):
    dj.pair(*pair)


@pytest.mark.parametrize("fields, words", [
    ({"rule": None}, "neither a rule nor"),
    ({"walk": traversal.walk}, "both a rule and")])
def test_verifiers_have_one_way(fields, words):
  pair = METHOD.sampled
  with pytest.raises(ValueError, match=f"^verifier has {words} a walk: one"):
    dj.pair(pair.drafter, pair.verifier._replace(**fields))


@pytest.mark.parametrize("field, value", [
    ("step", None), ("max_slots_ahead", 1.5), ("max_samples_per_node", 0),
    ("needs_reward", "no")])
def test_fields_of_decoders(field, value):
  wrong = REWARDED.greedy._replace(**{field: value})
  refused([f"method.greedy.{field}={value!r}: "], reward=REWARD,
          method=REWARDED._replace(greedy=wrong))


def test_keys():
  for key in (0, np.zeros(2), "seed"):
    refused(["key"], key=key)
  for shape in ((3,), (1,), (2, 5)):
    refused([f"key has shape {shape} and type uint32", "jax.random.key(0)"],
            key=np.zeros(shape, np.uint32))
  for shape in ((1,), (3,), (2, 1)):
    refused([f"key has shape {shape}", "2 rows"],
            key=jax.random.split(jax.random.key(0), shape))


def test_padding_may_be_anything_and_traced_prompts_are_not_looked_at():
  prompts = jnp.array([[1, 2, -1], [3, 99, -7]])
  prompts_lib.check(prompts, jnp.array([2, 1]), V)

  @jax.jit
  def run(prompts, lengths):
    prompts_lib.check(prompts, lengths, V)
    return prompts.sum()

  assert run(jnp.array([[99]]), jnp.array([7])) == 99
  with pytest.raises(ValueError, match="float32"):
    run(jnp.array([[1.0]]), jnp.array([1]))


def test_drafters_that_are_needed_and_that_fit():
  refused(["draft=None", "rsd_s(2x2)"], draft=None)
  argument_checks.check_models(dj.methods.autoregressive(), UNTOUCHED, None)
  # As many siblings as tokens.
  argument_checks.check_models(dj.methods.rsd_s(4, 2), UNTOUCHED, UNTOUCHED)
  refused(["draft.vocab_size=5", "target.vocab_size=4"],
          draft=UNTOUCHED._replace(vocab_size=5))


@pytest.mark.parametrize("method", [
    dj.methods.rsd_c((2, 5)), dj.methods.rsd_s(5, 1),
    dj.methods.specinfer(5, 1), dj.methods.spectr(5, 2),
    dj.methods.gsd(4, 1, 2, 5)], ids=lambda m: m.name)
def test_more_siblings_than_tokens(method):
  refused([method.name, "5 siblings", "4 tokens"], method=method)


@pytest.mark.parametrize("method", [
    dj.methods.pearl(2), dj.methods.at_speed(2, 2, 2), dj.methods.gsi(2, 3),
    dj.methods.gsd(4, 1, 2), dj.methods.masked_draft((1,)),
    dj.methods.cdsl(2, 2), dj.methods.cdlh(2, 2, rollout="draft")],
                         ids=lambda method: method.name)
def test_methods_that_need_a_language_model(method):
  nothing = lambda *_: None
  head = dj.Head(nothing, nothing, nothing, nothing, V, (), lambda depth: 1)
  with pytest.raises(ValueError, match="draft is a head.* needs a language"):
    argument_checks.check_models(method, UNTOUCHED, head)


def test_the_drafts_sampling_is_checked_at_temperature_0_too():
  refused(["draft_sampling.temperature=-3"], sampling=dj.Sampling(0.0),
          draft_sampling=dj.Sampling(-3.0))


def test_budgets():
  """Positive integers; positions are numbers of 32 bits."""
  for budget in (0, -3, 2.0, None):
    refused([f"max_new_tokens={budget!r}"], max_new_tokens=budget)
  roomy = UNTOUCHED._replace(max_length=0)
  for budget in (2**30, 2**31, 2**40, 10**30):
    refused([f"max_new_tokens={budget} ", f"{budget + 3} positions",
             str(2**30)], max_new_tokens=budget, target=roomy, draft=roomy)
  # All positions may be used.
  argument_checks.check_budget(3, 5, UNTOUCHED, UNTOUCHED)
  argument_checks.check_budget(3, 500, roomy, None)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_positions_must_suffice(name):
  roomy = UNTOUCHED._replace(max_length=0)
  words = ["a prompt of 3 tokens", "max_new_tokens=6", "9 positions",
           f"the {name} has max_length=8"]
  others = {"target": roomy, "draft": roomy, name: UNTOUCHED}
  refused(words, max_new_tokens=6, method=dj.methods.pearl(2), **others)


def test_ends_of_texts_are_tokens_or_none():
  for eos_id in (-1, 4, 1.0, True, [[1]], [1, 4], [], "a"):
    refused([f"eos_id={eos_id}", "0 to 3"], eos_id=eos_id)
  with pytest.raises(ValueError, match="eos_id=99"):
    argument_checks.check_eos(np.int64(99), V)
  for eos_id in (None, 0, 3, (1, 3)):
    argument_checks.check_eos(eos_id, V)


@pytest.mark.parametrize("name", ["sampling", "draft_sampling"])
@pytest.mark.parametrize("arguments, words", [
    (dict(temperature=-0.5), ["temperature=-0.5"]),
    (dict(temperature=float("inf")), ["temperature=inf"]),
    (dict(temperature=float("nan")), ["temperature=nan"]),
    (dict(temperature=1e-46), ["temperature=1e-46", "from 1e-30 to 1e+30"]),
    (dict(temperature="0.7"), ["temperature='0.7'"]),
    (dict(temperature=None), ["temperature=None"]),
    (dict(temperature=np.ones(3)), ["temperature", "(3,)", "2 rows"]),
    (dict(top_k=-1), ["top_k=-1"]),
    (dict(top_k=2.0), ["top_k=2.0"]),
    (dict(top_p=0.0), ["top_p=0.0"]),
    (dict(top_p=1.5), ["top_p=1.5"]),
    (dict(top_p=1e-50), ["top_p=1e-50", "from 1e-30 to 1"]),
    (dict(top_p=float("nan")), ["top_p=nan"]),
    (dict(top_p=np.ones((2, 1))), ["top_p", "(2, 1)"]),
    (dict(min_p=-0.1), ["min_p=-0.1", "from 0 to 1"]),
    (dict(min_p=1.5), ["min_p=1.5"]),
    (dict(min_p=float("nan")), ["min_p=nan"]),
    (dict(min_p=None), ["min_p=None"]),
    (dict(min_p=np.zeros(3)), ["min_p", "(3,)", "2 rows"]),
    (dict(temperature=[[1.0], [1.0, 2.0]]), ["temperature is no array"]),
    (dict(temperature=np.array([0.0, 1.0])), ["temperature"]),
    (dict(temperature=np.array([-1.0, 1.0])), ["temperature"]),
    (dict(top_p=np.array([0.0, 1.0])), ["top_p"]),
    (dict(top_p=np.array([1.0, 1.5])), ["top_p"]),
    (dict(min_p=np.array([0.0, -0.5])), ["min_p"]),
    (dict(token_mask=np.ones(V)), ["token_mask", "float64"]),
    (dict(token_mask="x"), ["token_mask", "type <U1"]),
    (dict(token_mask=np.ones(3, bool)), ["token_mask", "(3,)", "(4,)"]),
    (dict(token_mask=np.array([[1] * 4, [0] * 4], bool)),
     ["token_mask", "forbids every token"]),
], ids=str)
def test_sampling(name, arguments, words):
  refused([name, *words], **{name: dj.Sampling(**arguments)})


def test_temperatures_that_a_method_does_not_know():
  refused(["sampling.temperature=1.0", "alone", "temperature 0 only"],
          method=ALONE, sampling=dj.Sampling(1.0))
  refused(["sampling.temperature=0", "warm", "temperatures above 0 only"],
          method=WARM, sampling=dj.Sampling(0))


def refused_model(words, prompts=None, **fields):
  """Asserts that a table with other fields is refused in these words."""
  model, params = tabular.TabularLM(np.zeros((V, V)))
  given = {} if prompts is None else dict(
      prompts=prompts, prompt_lengths=np.ones(len(prompts), int))
  with pytest.raises(ValueError, match=words):
    generate(target=model._replace(**fields), target_params=params, **given)


@pytest.mark.parametrize("forward, words", [
    (lambda logits, block: logits, "forward returned .*(logits, block)"),
    (lambda logits, block: (logits[:, 0], block), r"\(2, 4\) .*\(2, 2, 4\)"),
    (lambda logits, block: (logits[..., :1], block), r"\(2, 2, 1\) "),
    (lambda logits, block: (logits.astype(int), block), "type int32: floats"),
    (lambda logits, block: (logits, types.Block((logits,), ())), "a block of"),
], ids=["logits", "last", "one", "integers", "block"])
def test_what_a_model_returns(forward, words):
  model, _ = tabular.TabularLM(np.zeros((V, V)))
  refused_model(words, forward=lambda *args: forward(*model.forward(*args)))


def test_what_a_model_returns_of_prompts_of_one_token():
  refused_model("type function: .logits, block.", np.ones((2, 1), int),
                forward=lambda *_: _refuse)


# Caches of S = 32 slots are asked for; after the batch of 2 comes one head.
@pytest.mark.parametrize("keys, values, length, words", [
    (((2, 1, 3, 4),), ((2, 1, 32, 3),), int, r"keys .*S\].*B=2, S=32"),
    (((2, 1, 32, 3),), ((2, 1, 32, 3),), int, r"keys of .*\(2, 1, 32, 3\)"),
    (((2, 1, 3, 32),), ((2, 32, 3),), int, r"values of .*\(2, 32, 3\)"),
    ([(2, 1, 3, 32)], ((2, 1, 32, 3),), int, "keys are of type list: a tuple"),
    (((2, 1, 3, 32),), ((2, 1, 32, 3),), float, "length .*float32: int32"),
], ids=["small", "swapped", "axes", "list", "length"])
def test_what_a_cache_is(keys, values, length, words):
  zeros = lambda shapes: type(shapes)(map(jnp.zeros, shapes))
  refused_model(words, init_cache=lambda *_: types.Cache(
      zeros(keys), zeros(values), jnp.zeros(2, length)))


def test_what_features_are_and_what_is_no_cache():
  for features, words in (
      ((jnp.zeros((2, 32, 3)),),
       "features are of type tuple: a dict is needed"),
      ({"own": jnp.zeros((2, 3, 32))}, r"features\['own'\] of shape \(2, 3, ")):
    refused_model(words, init_cache=lambda *_, features=features: types.Cache(
        (), (), jnp.zeros(2, jnp.int32), features))
  refused_model("type dict: a dj.Cache is needed", init_cache=lambda *_: {})


def test_static_arguments_can_be_hashed_and_methods_hold_pairs_or_decoders():
  refused(["target holds", "unhashable"],
          target=UNTOUCHED._replace(vocab_size=jnp.int32(V)))
  refused(["method.sampled", "type Drafter", "dj.pair"],
          method=dj.Method("m", METHOD.sampled.drafter, None))


@pytest.mark.parametrize("drafter, rule, words", [
    (lambda tokens: tokens[:1], None, r"expand .* tokens .*\(1,\).*\(2,\)"),
    (lambda tokens: tokens * 1.0, None, "expand .* float32: integer"),
    (None, lambda rank, rest: (rank * 1.0, rest), "rank .* float32: a single"),
    (None, lambda rank, rest: (rank, rest[:1]), r"residual .*\(1,\)"),
], ids=["fewer", "floats", "rank", "residual"])
def test_what_a_pair_returns(drafter, rule, words):
  grown = right = expanders.stochastic_beam(2, 2)
  verifier = METHOD.sampled.verifier
  if drafter:
    grown = right._replace(expand=lambda *args: (
        lambda tokens, *rest: (drafter(tokens), *rest))(*right.expand(*args)))
  if rule:
    verifier = verifier._replace(
        rule=lambda *args: rule(*METHOD.sampled.verifier.rule(*args)))
  model, params = tabular.TabularLM(np.zeros((V, V)))
  with pytest.raises(ValueError, match=words):
    generate(method=dj.Method("own", dj.pair(grown, verifier), None),
             target=model, target_params=params, draft=model,
             draft_params=params)


@pytest.mark.parametrize("state, value, words", [
    (1.5, lambda state: state, r"advance returned .* float32\[\]: .*int32\[\]"),
    (1, lambda state: jnp.stack([state] * 2), r"returned .* shape \(2,\)"),
], ids=["state", "value"])
def test_what_a_reward_returns(state, value, words):
  reward = dj.Reward(lambda *_: jnp.int32(0),
                     lambda params, constraint, x, *_: x + state,
                     lambda params, constraint, x: value(x))
  model, params = tabular.TabularLM(np.zeros((V, V)))
  with pytest.raises(ValueError, match=words):
    jax.eval_shape(lambda: generate(
        method=dj.methods.autoregressive(), reward=reward,
        target=model, target_params=params, draft=None))


@pytest.mark.parametrize("arguments, words", [
    (dict(method=REWARDED), ["reward=None", "rewarded"]),
    (dict(constraints=np.ones(2)), ["reward=None", "constraints"]),
    (dict(reward_params=1.0), ["reward=None", "reward_params"]),
    (dict(reward=REWARD, constraints=[np.ones(2), np.ones((3, 2))]),
     ["constraints", "(3, 2)", "2 rows"]),
    (dict(reward=REWARD, constraints=1.0), ["constraints", "()", "2 rows"]),
])
def test_rewards(arguments, words):
  refused(words, **arguments)
