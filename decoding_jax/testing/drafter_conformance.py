"""Tests whether a drafter keeps the contract of `decoding_jax.Drafter`.

A wrong mask, or children that are not the declared samples, would bias texts
without an error. `check_drafter` inspects the trees of some steps of many rows.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import loop, sampling
from decoding_jax.kernels import random
from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation import tree_decoder
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from decoding_jax.types import (Cache, Context, Drafter, Draws, DraftTree,
                                FreeLayout, LanguageModel, NONE, Pair, Params,
                                SAMPLED)
from decoding_jax.validation import protocols

_VOCAB = 6
# Tokens of the longest prompt; others are shorter.
_WIDTH = 5
# A part of the rows is done after one step; some others are run alone as well.
_DONE_PART = 8
_ALONE = 2
# How far sums of probabilities may be from 1, and log-probabilities of a row
# from the same row alone.
_TOLERANCE = 1e-3


class _Models(NamedTuple):
  target: LanguageModel
  target_params: Params
  draft: LanguageModel | None
  draft_params: Params


class _Look(NamedTuple):
  """A step: arrays of the host, rows first; `running [B]` bool of its rows."""
  number: int
  newest: np.ndarray
  running: np.ndarray
  tree: DraftTree


def check_drafter(drafter: Drafter, *, target=None, target_params=None,
                  draft=None, draft_params=None, rows: int = 2000,
                  steps: int = 3, seed: int = 0):
  """Raises unless the trees and the state of a drafter are as they should be.

  Args:
    drafter: to be checked.
    target: a language model; None for random distributions of six tokens by the
      last one.
    target_params: its parameters.
    draft: the draft model, or a head; None for another such table, if the
      drafter has one.
    draft_params: parameters of `draft`, or of a drafter without a model.
    rows: texts that are continued.
    steps: of each text.
    seed: of prompts and random keys.

  Raises:
    AssertionError: naming step, row and node, and what is wrong with it.
    ValueError: if the drafter has not the fields of one.
  """
  protocols.check("drafter", Drafter, drafter)
  models = _models(drafter, target, target_params, draft, draft_params)
  rng = np.random.default_rng(seed)
  prompts = rng.integers(0, models.target.vocab_size, (rows, _WIDTH))
  lengths = rng.integers(1, _WIDTH + 1, rows)
  budgets = np.where(np.arange(rows) < rows // _DONE_PART, 1,
                     steps * (tree_lib.depth(drafter.layout) + 1) + 1)
  keys = jax.random.split(jax.random.key(seed), rows)
  run = functools.partial(_run, drafter, models, steps)
  looks = run(keys, prompts, lengths, budgets)
  if drafter.draws in SAMPLED | {Draws.OF_SEVERAL}:
    _check_samples(drafter, looks)
  for row in range(rows - min(_ALONE, rows), rows):
    alone = run(*(x[row:row + 1] for x in (keys, prompts, lengths, budgets)))
    for together, look in zip(looks, alone):
      _check_same(row, together, look)


def _models(drafter, target, target_params, draft, draft_params) -> _Models:
  tables = exactness.random_tables(_VOCAB)
  if target is None:
    target, target_params = exactness.table_model(tables[0])
  if draft is None and drafter.calls:
    draft, draft_params = exactness.table_model(tables[1])
  return _Models(target, target_params, draft, draft_params)


def _run(drafter, models, steps, keys, prompts, lengths,
         budgets) -> list[_Look]:
  """Takes some steps, and checks each of them; returns what was seen."""
  pair = Pair(drafter, verifiers.sample_and_match())
  decoder = tree_decoder.of_pair(pair)
  context, state = _begin(decoder, models, keys, prompts, lengths, budgets)
  _check_forms(drafter, decoder, context, state)
  looks = []
  for number in range(steps):
    tree, after = _step(drafter, decoder, context, state)
    length = np.asarray(state.length)
    look = _Look(
        number, np.asarray(state.tokens)[np.arange(len(length)), length - 1],
        ~np.asarray(state.done), _on_host(tree))
    _check_tree(drafter.layout, models.target.vocab_size, look)
    _check_done(number, state, after)
    looks.append(look)
    state = after
  return looks


def _begin(decoder, models, keys, prompts, lengths, budgets):
  """Returns a context, and the state before the first step."""
  prompts = np.where(np.arange(_WIDTH) < lengths[:, None], prompts, 0)
  prompts, lengths, budgets = (jnp.asarray(x, jnp.int32)
                               for x in (prompts, lengths, budgets))
  batch, vocab_size = len(prompts), models.target.vocab_size
  # Not of the batch: rows alone have caches of the same size.
  room = _WIDTH + 1 + int(budgets.max()) + 64
  slots = prefill.capacity(_WIDTH, room + decoder.max_slots_ahead)
  warper = sampling.make_warper(sampling.Sampling(), batch, vocab_size)
  context = Context(
      **models._asdict(), warper=warper, draft_warper=warper,
      eos_id=jnp.full(1, NONE, jnp.int32), prompts=prompts,
      prompt_lengths=lengths, reward=None, reward_params=None,
      constraints=None)
  caches = loop.prefill(decoder, slots, prefill.CHUNK, context, (None, None))
  state = loop.start(decoder, room, context, caches, keys)
  return context, state.replace(limit=lengths + budgets)


def _propose(drafter, context, state):
  return drafter.propose(jax.vmap(random.fold_in)(state.keys, state.step),
                         context, state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(drafter, decoder, context, state):
  """Returns a tree that might be proposed now, and the state after a step."""
  return _propose(drafter, context, state)[0], decoder.step(context, state)


def _check_forms(drafter, decoder, context, state):
  given = jax.eval_shape(functools.partial(_propose, drafter), context, state)
  if not (isinstance(given, tuple) and len(given) == 2
          and isinstance(given[0], DraftTree)):
    raise AssertionError("Drafter.propose: (tree, pending), a dj.DraftTree and "
                         f"anything, is needed, not a {type(given).__name__}.")
  tree, (batch, size) = given[0], _sizes(drafter, state)
  needed = {"tokens": ((batch, size), "int32"),
            "parents": ((batch, size), "int32"),
            "valid": ((batch, size), "bool"),
            "mask": ((batch, size, size), "bool")}
  if drafter.draws in SAMPLED or tree.log_probs is not None:
    shape = getattr(tree.log_probs, "shape", (0, 0, 0))
    # The root has a distribution of each of several models.
    inner = (min(shape[1], size) if isinstance(drafter.layout, FreeLayout)
             or drafter.draws == Draws.OF_SEVERAL
             else 1 + sum(drafter.layout.widths[:-1]))
    needed["log_probs"] = ((batch, inner, context.target.vocab_size), "float32")
  for name, form in needed.items():
    x = getattr(tree, name)
    got = None if x is None else (x.shape, str(x.dtype))
    if got != form:
      raise AssertionError(
          f"DraftTree.{name}: {form[1]} of shape {form[0]} is needed, and "
          f"{'None' if got is None else f'{got[1]} of shape {got[0]}'} is "
          "given.")
  after = jax.eval_shape(decoder.step, context, state)
  for name in ("carry", "draft_cache"):
    old, new = (_forms(getattr(x, name)) for x in (state, after))
    if old != new:
      raise AssertionError(
          f"Drafter.observe: {name} has other shapes or types after a step: "
          f"{new} instead of {old}.")


def _sizes(drafter, state):
  return len(state.length), 1 + tree_lib.num_nodes(drafter.layout)


def _on_host(tree):
  """Returns a tree of NumPy arrays, which random keys cannot be."""
  return jax.tree.map(np.asarray, tree.replace(noise_keys=None))


def _forms(tree):
  return {jax.tree_util.keystr(path): (x.shape, str(x.dtype))
          for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def _check_tree(layout, vocab_size, look: _Look):
  """Checks the nodes that may be tested, of rows that run."""
  tree = look.tree
  valid = tree.valid & look.running[:, None]
  parents, own = tree.parents, np.arange(tree.tokens.shape[1])[None]
  root = own == 0
  fail = functools.partial(_fail, look.number)
  fail(look.running[:, None] & root & (
      (tree.tokens != look.newest[:, None]) | ~tree.valid | (parents != NONE)),
       "the root is the newest token of the text, is valid, and has the parent "
       f"{NONE}")
  fail(valid & ~root & ((parents < 0) | (parents >= own)),
       "its parent must have a lower index", parents)
  fail(valid & ((tree.tokens < 0) | (tree.tokens >= vocab_size)),
       f"it is valid, so its token must be in 0..{vocab_size - 1}", tree.tokens)
  above = np.maximum(parents, 0)
  fail(valid & ~root & ~np.take_along_axis(tree.valid, above, 1),
       "it is valid, but its parent is not", parents)
  mask = _masks(above)
  fail(valid & (mask != tree.mask).any(axis=2),
       "its mask must be itself and its ancestors by `parents`, and nothing "
       "else")
  _check_layout(layout, fail, valid, above, mask.sum(axis=2) - 1)


def _check_layout(layout, fail, valid, above, depths):
  size = valid.shape[1]
  below = (above[:, None] == np.arange(size)[None, :, None]) & (
      valid & (np.arange(size) > 0))[:, None]
  children = below.sum(axis=2)
  if isinstance(layout, FreeLayout):
    fail(valid & (depths > layout.depth),
         f"it is deeper than FreeLayout.depth={layout.depth}", depths)
    most = np.full(size, layout.branching)
  else:
    levels = tree_lib.depths(layout)
    fail(valid & (depths != levels[None]),
         "its depth is not the level that Layout.widths gives it", depths)
    most = np.array((*layout.branching, 0))[levels]
  fail(children > most[None], "it has more valid children than the layout "
       "says", children)


def _masks(above):
  """Returns `[B, M, M]` bool, each node and its ancestors by parents."""
  batch, size = above.shape
  mask = np.broadcast_to(np.eye(size, dtype=bool), (batch, size, size)).copy()
  for node in range(1, size):
    mask[:, node] |= mask[np.arange(batch), above[:, node]]
  return mask


def _fail(step, wrong, message, values=None):
  """Raises AssertionError for the first node `[B, M]` that is wrong."""
  if wrong.any():
    row, node = np.argwhere(wrong)[0]
    value = "" if values is None else f" (found: {values[row, node]})"
    raise AssertionError(
        f"step {step}, row {row}, node {node}: {message}{value}.")


def _check_done(step, before, after):
  """Checks that rows that were done keep their state."""
  done = np.flatnonzero(np.asarray(before.done))
  kept = [jax.tree.leaves((x.carry, x.draft_cache),
                          is_leaf=lambda x: isinstance(x, Cache))
          for x in (before, after)]
  for old, new in zip(*kept) if len(done) else ():
    if isinstance(old, Cache):
      old, new = old.length, new.length
    old, new = np.asarray(old)[done], np.asarray(new)[done]
    changed = (old != new).reshape(len(done), -1).any(axis=1)
    if changed.any():
      raise AssertionError(
          f"step {step}, row {done[changed.argmax()]}: the row was done, and "
          "its state changes; where `seen.count` is 0 nothing was committed.")


def _check_samples(drafter, looks):
  """Checks that children are as frequent as `log_probs` says. Of each sibling
  rank, by the sibling before it, or the parent of a first one: chi-square,
  which is strict enough where the distributions of rows differ."""
  observed, expected = {}, {}
  for look in looks:
    tree = look.tree
    for node in range(1, tree.tokens.shape[1]):
      rows = np.flatnonzero(tree.valid[:, node] & look.running)
      if not len(rows):
        continue
      parents, tokens = tree.parents[rows, node], tree.tokens[rows]
      sources = parents if tree.sources is None else tree.sources[rows, node]
      probs = np.exp(tree.log_probs[rows, sources].astype(np.float64))
      if np.abs(probs.sum(axis=1) - 1).max() > _TOLERANCE:
        raise AssertionError(
            f"step {look.number}, node {node}: the probabilities of "
            "`log_probs` of its parent do not add up to 1.")
      before, rank = tokens[np.arange(len(rows)), parents], 0 * rows
      for other in range(1, node):
        twin = tree.valid[rows, other] & (tree.parents[rows, other] == parents)
        before = np.where(twin, tokens[:, other], before)
        rank = rank + twin
        if drafter.draws in (Draws.WITHOUT_REPLACEMENT, Draws.PRUNED):
          probs[twin, tokens[twin, other]] = 0
      probs /= np.maximum(probs.sum(axis=1, keepdims=True), 1e-30)
      for case in set(zip(rank, before)):
        here = (rank == case[0]) & (before == case[1])
        hits = np.bincount(tokens[here, node], minlength=probs.shape[1])
        observed[case] = observed.get(case, 0) + hits
        expected[case] = expected.get(case, 0) + probs[here].sum(axis=0)
  if not observed:
    return
  observed, expected = (np.stack([x[case] for case in observed])
                        for x in (observed, expected))
  p_value = exactness.p_value(observed, expected / observed.sum())
  if p_value < exactness.MIN_P_VALUE:
    raise AssertionError(
        f"Drafter.draws={drafter.draws.name}, but the children are no "
        f"{drafter.draws.value} of `log_probs`, in the order of their indices: "
        "chi-square p="
        f"{p_value:.2g}, {exactness.MIN_P_VALUE:g} is needed.")


def _check_same(row, together: _Look, alone: _Look):
  """Checks that a row's tree is the same without the other rows."""
  many = jax.tree.map(lambda x: x[row], together.tree)
  one = jax.tree.map(lambda x: x[0], alone.tree)
  same = np.array_equal(many.valid, one.valid) and all(
      np.array_equal(getattr(many, name)[one.valid],
                     getattr(one, name)[one.valid])
      for name in ("tokens", "parents"))
  if same and one.log_probs is not None:
    inner = (one.valid[:len(one.log_probs)] if one.sources is None
             else np.full(len(one.log_probs), True))
    same = np.allclose(np.exp(many.log_probs[inner]),
                       np.exp(one.log_probs[inner]), atol=_TOLERANCE)
  if not same:
    raise AssertionError(
        f"step {alone.number}, row {row}: alone it has another tree than "
        "next to other rows; its tree may depend on its own key, text and "
        "state alone.")
