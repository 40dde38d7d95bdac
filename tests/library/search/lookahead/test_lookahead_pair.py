"""The invariants of CDLH and CDSL on the shipped pair."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from library.search.lookahead import test_cdlh as cdlh
from library.search.lookahead import test_cdsl as cdsl
from models import checkpoints, transformer
from models.folders.resolve import PRETRAINED
from models.text import tokenizers
from support import lookahead_reference as reference
from support import tiny_models as tiny

NAMES = "python-target", "python-draft"
LOOK, NEW = reference.Look(3, 3), 8
SOURCES = ("import os\nimport", "def main(args):\n  return")


@functools.lru_cache(maxsize=None)
def pair():
  """Target and draft, their layers scanned, which compiles faster."""
  return tiny.Models(*map(_scanned, NAMES))


def _scanned(name):
  _, params = checkpoints.load(PRETRAINED / name)
  config = checkpoints.load_config(PRETRAINED / name)
  layers = [params["layers"][f"layer_{i}"] for i in range(config.num_layers)]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  lm = transformer.language_model(dataclasses.replace(config, scan_layers=True))
  return tiny.Model(lm, {**params, "layers": {"layer": stacked}})


@functools.lru_cache(maxsize=None)
def prompts():
  encoder = tokenizers.load(PRETRAINED / NAMES[0])
  ids = [encoder.encode(source).ids for source in SOURCES]
  padded = np.zeros((len(ids), max(map(len, ids))), np.int32)
  for row, text in zip(padded, ids):
    row[:len(text)] = text
  return padded, np.array([len(text) for text in ids], np.int32)


@functools.lru_cache(maxsize=None)
def run(method, scale=0.5, alone=False):
  """Texts and counts; if alone, of a target that drafts for itself."""
  tokens, lengths = prompts()
  models = tiny.Models(pair().target, pair().target) if alone else pair()
  out = cdlh.run(method, models=models, prompts=tokens, new=NEW,
                 lengths=lengths, reward=tiny.toll_reward(), eos_id=None,
                 constraints=cdsl.tolls(len(tokens), scale),
                 reward_params=None)
  return tiny.texts(out, lengths), jax.tree.map(np.asarray, out.stats)


@functools.lru_cache(maxsize=None)
def greedy():
  return tiny.greedy(pair().target, *prompts(), NEW)


OPEN = cdsl.make(LOOK, acceptance_threshold=0, low_acceptance="search")


def test_rewards_that_always_pass_are_greedy():
  texts, stats = run(OPEN, 0)
  assert texts == greedy()
  assert not stats.extra["states"][:, 1:].any()
  assert (stats.target_calls < NEW).all()


def test_rewards_that_never_pass_are_cdlh():
  texts, stats = run(OPEN)
  assert texts == run(dj.methods.cdlh(*LOOK))[0] != greedy()
  assert stats.extra["states"].tolist() == [[0, NEW, 0, 0]] * len(SOURCES)


def test_a_target_that_drafts_for_itself_is_always_right():
  method = cdsl.make(LOOK, acceptance_threshold=1, low_acceptance="search")
  texts, stats = run(method, 0, alone=True)
  assert texts == greedy()
  assert stats.extra["states"].tolist() == [
      [-(-NEW // (LOOK.n + 1)), 0, 0, 0]] * len(SOURCES)


def test_one_candidate_or_no_reward_is_greedy():
  """A reward that is always 0 is as good as a weight of 0."""
  assert run(dj.methods.cdlh(1, LOOK.n))[0] == greedy()
  assert run(dj.methods.cdlh(*LOOK), 0)[0] == greedy()


def test_rows_alone_and_what_an_iteration_commits():
  """Invariants 5 and 6, where rewards pass and fail in turn."""
  tokens, lengths = prompts()
  decode = lambda rows: cdlh.run(
      cdsl.make(LOOK), models=pair(), prompts=tokens, lengths=lengths, new=NEW,
      eos_id=None, rows=rows)
  both, states = decode(slice(None)), 0
  for i in range(len(SOURCES)):
    alone = decode(slice(i, i + 1))
    cdlh.same_rows(alone, both, slice(i, i + 1))
    iterations = alone.stats.extra["states"].sum()
    assert iterations == alone.steps
    assert iterations <= alone.stats.emitted[0] <= iterations * (LOOK.n + 1)
    states += alone.stats.extra["states"][0]
  assert (states > 0).sum() > 1
