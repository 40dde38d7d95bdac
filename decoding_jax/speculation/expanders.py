"""Trees drafted by a language model, level by level: loop and expanders.

Equal sizes give the same expander object, so that methods with equal trees
share one compiled program at temperature 0.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import beam, sampling
from decoding_jax.kernels import buffers, random, vocabulary
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Array, Block, Cache, Draws, DraftTree,
                                Expander, LanguageModel, Layout, Params)
from decoding_jax.validation import values

# The draft block starts with the token that the draft cache may lack.
_LATE = 0
_ROOT = 1


def grow(keys, expander: Expander, model: LanguageModel, params: Params,
         cache: Cache | None, newest, length, warper: sampling.LogitsWarper,
         noise_keys=None) -> tuple[DraftTree, Block | None]:
  """Drafts a tree, one forward a level; the deepest level needs none.

  Args:
    keys: `[B]` random keys.
    expander: what expands the levels.
    model: the drafting model; None for a tree of a root.
    params: its parameters.
    cache: its cache, one or two tokens shorter than the row.
    newest: `[B, 2]` int32, the last two committed tokens.
    length: `[B]` int32, committed tokens.
    warper: from logits to the distribution of the drafts.
    noise_keys: `[B, D + 1]`, see `DraftTree`, for an expander with
      `Draws.SHARED_NOISE`; else None.

  Returns:
    The tree, and a block of `1 + I` slots: the token that the cache may lack,
    the root, and the other nodes that have children.
  """
  layout = expander.layout
  if not layout.widths:
    return tree_lib.root(newest[:, 1], 0).replace(noise_keys=noise_keys), None
  block = cache_lib.init_block(cache, 1 + inner_nodes(layout))
  late = cache.length == length - 2

  def logits(tree, level, nodes, block):
    tokens, positions, slot, mask = _fresh(
        inner_nodes(layout), tree, level, nodes, newest, length, late)
    forward = model.forward if expander.num_models == 1 else model.forward_each
    with jax.named_scope("draft_forward"):
      logits, block = forward(params, tokens, positions, cache, block, slot,
                              mask)
    if expander.num_models > 1:
      return _of_own_model(logits, nodes.width), block
    return logits[:, -nodes.width:], block

  return grow_by(keys, expander, newest[:, 1], logits, block, model.vocab_size,
                 warper, noise_keys)


class Nodes(NamedTuple):
  """The nodes of a level."""
  start: Array  # `[]` int32, the index of the first one
  width: int  # W, how many they are
  is_root: bool  # Whether it is the level of the root

  def of(self, x, axis):
    """Returns their part of an array."""
    return jax.lax.dynamic_slice_in_dim(x, self.start, self.width, axis)


def inner_nodes(layout: Layout) -> int:
  """Returns I, the nodes of all levels but the last, the root included."""
  return 1 + sum(layout.widths[:-1])


def grow_by(keys, expander: Expander, root, logits, carry, vocab_size: int,
            warper: sampling.LogitsWarper,
            noise_keys=None) -> tuple[DraftTree, Any]:
  """Drafts a tree by any function that knows what follows the nodes of a level.

  Args:
    keys: `[B]` random keys.
    expander: what expands the levels, of which there is one.
    root: `[B]` int32, the newest token of each row.
    logits: `(tree, level [], nodes, carry) -> (logits [B, W, V], carry)`, of
      the W nodes of a level, the last ones that the tree has so far; after
      the root W is the number of models.
    carry: what it takes from level to level, a tree of arrays.
    vocab_size: V.
    warper: from logits to the distribution of the drafts.
    noise_keys: see `grow`.

  Returns:
    The tree and the last carry.
  """
  layout = expander.layout
  size = 1 + tree_lib.num_nodes(layout)
  # Each level writes the distributions of its nodes.
  more = expander.num_models - 1  # The root has one of each model.
  distributions, = buffers.empty_like([jax.ShapeDtypeStruct(
      (len(root), more + inner_nodes(layout), vocab_size), jnp.float32)], root)
  tree = tree_lib.root(root, size - 1).replace(
      log_probs=vocabulary.split(distributions))
  states = jax.vmap(lambda _: expander.init())(root)
  starts = [nodes.start for nodes in tree_lib.level_slices(layout)]

  def step(shape, level, carry, going=None):
    """Grows one level; `shape` is a level like it that is known statically."""
    tree, carry, states = carry
    start = jnp.asarray(starts, jnp.int32)[level]
    nodes = Nodes(start, starts[shape + 1] - starts[shape], shape == 0)
    level_logits, carry = logits(tree, level, nodes, carry)
    log_probs = sampling.drop_underflowing(
        jax.vmap(sampling.log_probs)(warper, level_logits))
    level_keys = (jax.vmap(random.fold_in, (0, None))(keys, level)
                  if noise_keys is None else noise_keys[:, level])
    expand = lambda key, *row: _checked(
        layout.widths[shape], expander.expand(key, shape, *row))
    tokens, parents, valid, states = jax.vmap(expand)(
        level_keys, log_probs, nodes.of(tree.valid, 1), states)
    if going is not None:
      valid &= going[:, None]
    tree = tree_lib.add_level(tree, nodes.start + nodes.width, tokens,
                              nodes.start + parents, valid)
    distributions, = buffers.write_slots(
        (tree.log_probs,), (log_probs,),
        nodes.start + (0 if nodes.is_root else more))
    return tree.replace(log_probs=distributions), carry, states

  def step_of_rows(shape, level, carry):
    """Grows one level, unless no row goes on: that saves a forward."""
    if expander.goes_on is None or shape == 0:
      return step(shape, level, carry)
    going = expander.goes_on(level, carry[0])
    return jax.lax.cond(
        going.any(), lambda carry: step(shape, level, carry, going),
        lambda carry: carry, carry)

  carry = tree, carry, states
  # One program for all levels of a shape: it is compiled once.
  for run in tree_lib.runs(layout):
    body = functools.partial(step_of_rows, run.start)
    carry = body(run.start, carry) if len(run) == 1 else (
        jax.lax.fori_loop(run.start, run.stop, body, carry))
  tree, carry, _ = carry
  sources = jnp.broadcast_to(_sources(expander), (
      len(root), size)) if more else None
  return tree.replace(noise_keys=noise_keys, sources=sources), carry


def product_tree(branching: tuple[int, ...], draws: Draws) -> Expander:
  """Trees whose nodes of a level have equally many children.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1; of no level
      for a tree of a root.
    draws: one of `OF_FIXED_TREES`. Without replacement it is RSD-C (arXiv
      2402.14160, section 3.2); `ARBITRARY` children are the most probable
      ones; with `ONE_SAMPLED` (arXiv 2605.04543) these come after a sample of
      the rest; with `SHARED_NOISE` nodes of a level have the same noise.
  """
  return _product(tuple(branching), draws)


def gumbel_tree(branching: tuple[int, ...]) -> Expander:
  """Returns `product_tree` of children drawn without replacement."""
  return product_tree(branching, Draws.WITHOUT_REPLACEMENT)


def top_k(branching: tuple[int, ...]) -> Expander:
  """Returns `product_tree` of the most probable children."""
  return product_tree(branching, Draws.ARBITRARY)


def static_tree(children: tuple[tuple[int, ...], ...],
                draws: Draws = Draws.WITHOUT_REPLACEMENT) -> Expander:
  """Trees in which each node has a number of children of its own.

  Chen et al. 2024, "Sequoia" (arXiv 2402.12374), section 3.

  Args:
    children: of each node of level 0, 1, ..., D - 1; see
      `tree.static_layout`.
    draws: as in `product_tree`.
  """
  return _static(tuple(map(tuple, children)), draws)


def iid_paths(num_paths: int, depth: int) -> Expander:
  """Independent sampled paths (SpecInfer, SpecTr), merged where they agree.

  Args:
    num_paths: paths.
    depth: tokens of a path.

  Returns:
    The expander, as `iid_tree` of paths that part at the root.
  """
  values.check_positives(num_paths=num_paths, depth=depth)
  return iid_tree((num_paths,) + (1,) * (depth - 1))


def iid_tree(expansion: tuple[int, ...], num_models: int = 1) -> Expander:
  """Independent samples, several of each node (SpecInfer, arXiv 2305.09781).

  Each path of level l continues in `expansion[l]` ways, independently of each
  other and of all other paths. Paths that agree are merged: the children of all
  of them hang from the first such path's node.

  Args:
    expansion: continuations of each path of level 0, 1, ..., D - 1.
    num_models: draft models; each draws this number of paths.

  Returns:
    The expander; of several models its draws are `Draws.OF_SEVERAL`.

  Raises:
    ValueError: if a number is not a positive integer, or there is none.
  """
  return _paths(tuple(expansion), num_models,
                Draws.WITH_REPLACEMENT if num_models == 1 else Draws.OF_SEVERAL)


def top_paths(expansion: tuple[int, ...], num_models: int) -> Expander:
  """Returns the trees of `iid_tree` with the most probable tokens instead."""
  return _paths(tuple(expansion), num_models, Draws.ARBITRARY)


@functools.lru_cache(maxsize=None)
def _paths(expansion, num_models, draws):
  values.check_positive("depth of expansion", len(expansion))
  widths = tuple(num_models * width
                 for width in tree_lib.product_layout(expansion).widths)
  # A node may have the continuations of all paths.
  layout = Layout(widths, widths)

  def draw(key, log_probs, each):
    if draws == Draws.ARBITRARY:
      return sampling.top_k(log_probs, each)[1].reshape(-1)
    keys = random.split(key, each * len(log_probs))
    return jax.vmap(sampling.draw)(keys, jnp.repeat(log_probs, each, axis=0))

  def expand(key, level, log_probs, valid, first):
    tokens = draw(key, log_probs, expansion[level])
    # The models share the root.
    valid, first = (jnp.repeat(x, widths[level] // len(x))
                    for x in (valid, first))
    equal = lambda x: x[None] == x[:, None]
    agree = equal(first) & equal(tokens)
    return tokens, first, valid, jnp.argmax(agree, axis=-1).astype(jnp.int32)

  return Expander(layout, lambda: jnp.zeros(1, jnp.int32), expand, draws,
                  num_models)


@functools.lru_cache(maxsize=None)
def beam_tree(width: int, depth: int, draws: Draws) -> Expander:
  """Trees of the paths that a beam search keeps at each level.

  Args:
    width: nodes of a level.
    depth: levels.
    draws: one of `OF_BEAMS`. Without replacement it is a stochastic beam
      (RSD-S; arXiv 2402.14160, section 3.2), `ARBITRARY` a plain one. With
      `SHARED_NOISE` children of a node are ordered as in `product_tree`, and
      the beam keeps those whose paths have the largest scores. `ONE_IN_BEAM` is
      `beam.with_one_sample` (after arXiv 2609.21827).
  """
  layout = tree_lib.beam_layout(width, depth)
  step = values.check_one_of("draws", draws, _BEAMS)

  def expand(key, level, log_probs, valid, state):
    del level, valid  # A node without probability has the score -inf already.
    tokens, parents, state = step(key, log_probs, state, width)
    return tokens, parents, state.scores > -jnp.inf, state

  return Expander(layout, beam.root, expand, draws)


def stochastic_beam(width: int, depth: int) -> Expander:
  """Returns `beam_tree` of a sample of paths without replacement."""
  return beam_tree(width, depth, Draws.WITHOUT_REPLACEMENT)


def top_beam(width: int, depth: int) -> Expander:
  """Returns `beam_tree` of the most probable paths."""
  return beam_tree(width, depth, Draws.ARBITRARY)


def _fresh(inner, tree, level, nodes, newest, length, late):
  """Tokens, positions, first slot and mask of the forward of a level."""
  mask = nodes.of(tree.mask, 1)[:, :, :inner]
  sees_late = jnp.broadcast_to(late[:, None, None], (*mask.shape[:2], 1))
  mask = jnp.concatenate([sees_late, mask], axis=-1)
  positions = jnp.broadcast_to((length - 1 + level)[:, None], mask.shape[:2])
  if not nodes.is_root:
    return nodes.of(tree.tokens, 1), positions, _ROOT + nodes.start, mask
  # Rows whose draft cache is up to date recompute their last token; the result
  # is masked out.
  itself = jnp.broadcast_to(jnp.arange(mask.shape[-1]) == _LATE, mask.shape)
  before = jnp.maximum(positions - 1, 0)
  return (newest, jnp.concatenate([before, positions], axis=1), _LATE,
          jnp.concatenate([itself, mask], axis=1))


def _of_own_model(logits, width):
  """Returns logits `[B, max(W, models), V]` of a level's nodes by their models.
  `logits` has `[B, T, V]` of each; of a root, all are kept."""
  each = max(width // len(logits), 1)
  starts = range(0, width, each) if width > 1 else [0] * len(logits)
  return jnp.concatenate([
      x[:, x.shape[1] - width + start:][:, :each]
      for x, start in zip(logits, starts)], axis=1)


def _sources(expander):
  """Returns `[M]` of `DraftTree.sources`: paths of several models."""
  widths = (expander.num_models, *expander.layout.widths)
  starts = np.cumsum((0, *widths))
  return np.concatenate([[0], *(
      starts[level] + np.arange(widths[level + 1]) // (
          widths[level + 1] // widths[level])
      for level in range(len(widths) - 1))]).astype(np.int32)


def _checked(width, grown):
  """Returns what an expander returned; ValueError, while traced, if wrong."""
  for name, x, base in zip(("tokens", "parents", "valid"), grown,
                           (jnp.integer, jnp.integer, jnp.bool_)):
    shape, dtype = values.form(x)
    if shape != (width,) or not jnp.issubdtype(dtype, base):
      raise ValueError(f"Expander.expand returned {name} of shape {shape} and "
                       f"type {dtype}: {base.__name__} of shape ({width},), as "
                       "the layout has it, is needed.")
  return grown


def _draw(key, log_probs, counts):
  """Children of each node of a level, samples without replacement."""
  keys = random.split(key, len(log_probs))
  # The first c of a draw are a draw of c.
  return jax.vmap(sampling.gumbel_top_k, (0, 0, None))(keys, log_probs,
                                                       max(counts))


def _draw_alike(key, log_probs, counts):
  """Children of each node of a level, by the same noise."""
  return jax.vmap(sampling.gumbel_top_k, (None, 0, None))(key, log_probs,
                                                          max(counts))


def _perturbed_alike(key, log_probs, state, width):
  keys = jnp.broadcast_to(key[None], len(log_probs))
  return beam.perturbed_by(keys, log_probs, state, width)


def _best(key, log_probs, counts):
  """Children of each node of a level, the most probable ones."""
  del key
  return sampling.top_k(log_probs, max(counts))


def _sample_and_best(key, log_probs, counts):
  """Of each node a sample of what the most probable children leave, and them.
  They are one less than the node has children, and leave one token of mass."""
  keys, vocab_size = random.split(key, len(log_probs)), log_probs.shape[-1]
  draw = lambda key, rest: sampling.gumbel_top_k(key, rest, 1)
  if max(counts) < 2:
    return jax.vmap(draw)(keys, log_probs)
  scores, tokens = sampling.top_k(log_probs, max(counts) - 1)
  support = (log_probs > -jnp.inf).sum(axis=-1)
  fixed = np.arange(max(counts) - 1)[None] < (
      jnp.minimum(counts, support) - 1)[:, None]
  drop = lambda row, at: vocabulary.put(row, at, -jnp.inf)
  rest = jax.vmap(drop)(log_probs, jnp.where(fixed, tokens, vocab_size))
  scores = jnp.where(fixed, scores, -jnp.inf)
  return tuple(jnp.concatenate(pair, axis=1) for pair in zip(
      jax.vmap(draw)(keys, rest), (scores, tokens)))


# How children of a node are picked, by how they are drawn, and beams go on.
_PICKS = {Draws.WITHOUT_REPLACEMENT: _draw, Draws.ARBITRARY: _best,
          Draws.ONE_SAMPLED: _sample_and_best, Draws.SHARED_NOISE: _draw_alike}
_BEAMS = {Draws.WITHOUT_REPLACEMENT: beam.perturbed,
          Draws.ARBITRARY: beam.plain, Draws.ONE_IN_BEAM: beam.with_one_sample,
          Draws.SHARED_NOISE: _perturbed_alike}
OF_FIXED_TREES, OF_BEAMS = frozenset(_PICKS), frozenset(_BEAMS)


@functools.lru_cache(maxsize=None)
def _product(branching, draws):
  layout = tree_lib.product_layout(branching)
  nodes = (1, *layout.widths)
  return _of_numbers(layout, draws, lambda level: (
      (branching[level],) * nodes[level]))


@functools.lru_cache(maxsize=None)
def _static(children, draws):
  layout = tree_lib.static_layout(children)
  return _of_numbers(layout, draws, layout.children.__getitem__)


def _of_numbers(layout, draws, numbers):
  """An expander of fixed trees; `numbers(level)` are its nodes' children."""
  pick = values.check_one_of("draws", draws, _PICKS)

  def expand(key, level, log_probs, valid, state):
    counts = np.array(numbers(level))
    parents = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    ranks = np.concatenate([np.arange(count) for count in counts])
    scores, tokens = (x[parents, ranks] for x in pick(key, log_probs, counts))
    return tokens, parents, valid[parents] & (scores > -jnp.inf), state

  return Expander(layout, lambda: (), expand, draws)
