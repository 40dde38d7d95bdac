"""Draws of decoding problems, and the joint distribution of their first tokens.

A case is made of a seed and a number alone: it can be run again on its own. It
has three prompts of unequal lengths, each of which is decoded many times.
"""

import functools
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.testing import exactness
from experiments.devices import mesh as mesh_lib, mesh_shapes, model_pair
from models.transformer import sharding
from support import helpers, random_methods, random_models

PROMPTS, _WIDTH = 3, 3
# Counted tokens by V: all texts of so many can be enumerated, and are frequent.
_LENGTHS = {3: 4, 4: 4, 5: 3, 6: 3}


class Case(NamedTuple):
  """A decoding problem."""
  name: str  # What was drawn, as JSON
  method: dj.Method
  models: random_models.Models  # The target with all processors
  prompts: Any  # [3, P]
  lengths: Any  # [3]
  warps: tuple  # Of each prompt, arguments of `helpers.warped`
  draft_sampling: dj.Sampling | None
  eos: tuple[int, ...]
  counted: int  # Tokens of a text that are compared
  budget: int  # Tokens that are generated
  in_turn: bool  # Whether rows of one prompt stand together
  share: int  # 1 or the part of all rows that are decoded together
  seed: int


def draw(seed, number, on_mesh=False, dtypes=random_models.DTYPES) -> Case:
  """Draws a case; one for a mesh has only what a mesh supports."""
  rng = np.random.default_rng((seed, number))
  draws = random_methods.Draws(rng, 0)
  # Each head comes in turn, and two other kinds between two heads.
  kind = random_models.HEADS[number // 3 % len(random_models.HEADS)] if (
      number % 3 == 0) else draws.one_of(*random_models.KINDS)
  draws = random_methods.Draws(rng, random_models.vocab_size(draws, kind))
  counted = 3 if random_models.is_transformer(kind) else (
      _LENGTHS[draws.vocab_size])
  prompts = rng.integers(0, draws.vocab_size, (PROMPTS, _WIDTH), np.int32)
  lengths = np.array([_WIDTH, *rng.integers(1, _WIDTH + 1, PROMPTS - 1)],
                     np.int32)
  models = random_models.draw(draws, kind, _contexts(
      [tuple(map(int, x[:n])) for x, n in zip(prompts, lengths)],
      draws.vocab_size, counted), dtypes)
  name, arguments, method = random_methods.draw(draws, models.drafter)
  penalty = draws.one_of(1., 1., 1., 1.8)
  models = _penalised(draws, models, penalty, kind == "table")
  start = None if on_mesh else _start(draws, name, arguments)
  if start is not None:
    models = models._replace(draft_params=start)
  warps = _warps(draws, on_mesh)
  eos = tuple(map(int, rng.permutation(draws.vocab_size)[:draws.one_of(
      0, 0, 1, 2)]))
  own = None if on_mesh or rng.random() < .6 else dj.Sampling(
      draws.one_of(.3, 1., 2.), top_k=draws.one_of(0, 2))
  case = Case("", method, models, prompts, lengths, warps, own, eos, counted,
              counted + draws.one_of(0, 0, 1, 3), draws.one_of(True, False),
              draws.one_of(1, 1, 3), int(rng.integers(2**31)))
  return case._replace(name=_name(case, number, kind, penalty, start))


def _name(case, number, kind, penalty, start):
  own = case.draft_sampling
  return json.dumps({
      "case": number, "kind": kind, "method": case.method.name,
      "V": case.models.target.vocab_size, "dtype": case.models.dtype,
      "prompts": [x[:n].tolist() for x, n in zip(case.prompts, case.lengths)],
      "warps": [{k: np.asarray(v).tolist() for k, v in x.items()}
                for x in case.warps], "penalty": penalty, "eos": case.eos,
      "draft": own and (own.temperature, own.top_k), "counted": case.counted,
      "budget": case.budget, "share": case.share, "start": start is not None})


def _contexts(prompts, size, counted):
  """Returns all texts that a counted token can follow."""
  contexts = results = list(dict.fromkeys(prompts))
  for _ in range(counted - 1):
    results = [(*text, token) for text in results for token in range(size)]
    contexts = contexts + results
  return list(dict.fromkeys(contexts))


def _penalised(draws, models, penalty, drafts_too):
  """Applies a repetition penalty to the target, and maybe to a draft model."""
  if penalty == 1:
    return models
  apply = functools.partial(
      dj.processors.apply,
      dj.processors.repetition_penalty(penalty, draws.vocab_size), ())
  target, params = apply(models.target, models.target_params)
  logits = {}
  for text, row in models.logits.items():
    seen = np.isin(np.arange(len(row)), text)
    logits[text] = np.where(seen, np.where(
        row > 0, row / penalty, row * penalty), row)
  models = models._replace(target=target, target_params=params, logits=logits)
  if not drafts_too or draws.rng.random() < .5:
    return models
  draft, params = apply(models.draft, models.draft_params)
  return models._replace(draft=draft, draft_params=params)


def _start(draws, name, arguments):
  """Returns what a drafter without a model begins with; None for nothing."""
  shapes = {"token_recycling": (draws.vocab_size, arguments.get("branching")),
            "suffix": (40,), "prompt_lookup": (40,)}
  if name not in shapes or draws.rng.random() < .5:
    return None
  return jnp.asarray(draws.rng.integers(-1, draws.vocab_size, shapes[name]),
                     jnp.int32)


def _warps(draws, on_mesh):
  """Returns arguments of `helpers.warped` for each prompt."""
  rng = draws.rng
  temperatures = [draws.one_of(1., 1., .5, 1.7)] * PROMPTS
  if not on_mesh and rng.random() < .25:
    temperatures = [draws.one_of(1., .6, 1.4) for _ in range(PROMPTS)]
  rest = dict(top_k=draws.one_of(0, 0, 0, 2, 3), top_p=draws.one_of(1., 1., .8),
              min_p=draws.one_of(0., 0., .1),
              typical_p=draws.one_of(1., 1., 1., .8))
  mask = rng.random(draws.vocab_size) < .7
  if not on_mesh and rng.random() < .15 and mask.sum() > 1:
    rest["token_mask"] = mask
  return tuple(dict(temperature=x, **rest) for x in temperatures)


def distributions(case):
  """Returns for each prompt a dict from each text to its probability."""
  return [_distribution(case, tuple(map(int, x[:n])), warp)
          for x, n, warp in zip(case.prompts, case.lengths, case.warps)]


def _distribution(case, prompt, warp):
  ended, texts = {}, {(): 1.0}
  for _ in range(case.counted):
    grown = {}
    for text, probability in texts.items():
      logits = case.models.logits[prompt + text]
      row, = helpers.warped(np.exp(logits - logits.max())[None], **warp)
      for token in np.flatnonzero(row):
        into = ended if token in case.eos else grown
        into[(*text, int(token))] = probability * row[token]
    texts = grown
  return ended | texts


def counts(case, rows):
  """Decodes `rows` texts, and counts for each prompt how often each occurs."""
  order = np.arange(rows // PROMPTS * PROMPTS) % PROMPTS
  order = np.sort(order) if case.in_turn else order
  out = _generate(case, order)
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  results = [{} for _ in range(PROMPTS)]
  for prompt, length in enumerate(case.lengths):
    at = order == prompt
    texts = tokens[at][:, length:length + case.counted]
    inside = np.arange(case.counted) < (ends[at] - length)[:, None]
    texts, times = np.unique(np.where(inside, texts, -1), axis=0,
                             return_counts=True)
    for text, count in zip(texts.tolist(), times.tolist()):
      results[prompt][tuple(x for x in text if x >= 0)] = count
  return results


def _generate(case, order):
  warp = case.warps[0] | {"temperature": np.array(
      [x["temperature"] for x in case.warps], np.float32)[order]}
  if len({x["temperature"] for x in case.warps}) == 1:
    warp["temperature"] = case.warps[0]["temperature"]
  given = dict(method=case.method, max_new_tokens=case.budget,
               sampling=dj.Sampling(**warp), eos_id=case.eos or None)
  models, key = case.models, jax.random.key(case.seed)
  rows = (case.prompts[order], case.lengths[order])
  if jax.device_count() > 1:
    return _on_mesh(models, jax.random.split(key, len(order)), rows, case.share,
                    given)
  return dj.generate(
      key, *rows, target=models.target, target_params=models.target_params,
      draft=models.draft, draft_params=models.draft_params,
      draft_sampling=case.draft_sampling,
      rows=None if case.share == 1 else len(order) // case.share + 1, **given)


def _on_mesh(models, keys, rows, share, given):
  """Decodes with rows split over all devices."""
  mesh = mesh_shapes.make((jax.device_count(), 1))
  draft = models.draft
  if models.drafter == "head":
    draft = sharding.head(draft)
  pair = model_pair.ModelPair(
      models.target, mesh_lib.on_all(mesh, models.target_params), draft,
      mesh_lib.on_all(mesh, models.draft_params), None, 1.0, mesh=mesh)
  return mesh_lib.generate(
      pair, keys, *rows, rows=None if share == 1 else (
          len(keys) // share // mesh.size * mesh.size), **given)


def p_value(actual, expected) -> float:
  """Returns how likely it is that some prompt fits as badly as the worst."""
  least = min(map(_p_value, actual, expected))
  # Not 1 - (1 - least)**PROMPTS, which is 0 where `least` is tiny.
  return float(-np.expm1(PROMPTS * np.log1p(-least))) if least < 1 else 1.0


def _p_value(actual, expected):
  """`exactness.p_value`; after the end of a text comes one token more."""
  texts = list(expected | actual)
  width, size = max(map(len, texts)), 1 + max(map(max, texts))
  tables = np.zeros((2, *(1 + size,) * width))
  for text in texts:
    at = text + (size,) * (width - len(text))
    tables[(slice(None), *at)] = actual.get(text, 0), expected.get(text, 0)
  return exactness.p_value(*tables)
