"""Speculative beam search (AtSpeed, arXiv 2410.05165), verified strictly.

The draft model searches N beams from the target's K beams, and one target
forward scores all of them. The target's own search goes on while its K best
texts of a level are among the drafted ones; the first K that are not are kept
too. So beams are the target's, at one to D + 1 levels a forward.

Both models keep the K beams of each level in slots of a block, drafted ones in
slots after these; accepted ones are copied. The draft model never runs its
deepest level, so it reads each beam's last two tokens again.
"""

import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.search import beam as beam_lib, level_search
from decoding_jax.search import relaxed_beams, texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import (Array, Block, Cache, Context, DecodeState,
                                Decoder)

# No slot of a block: what is copied there is dropped.
_NOWHERE = 2**30


class Sizes(NamedTuple):
  """Attributes: `beams` K, `width` N of a drafted level, `depth` D; `relaxed`.
  """
  beams: int
  width: int
  depth: int
  relaxed: bool = False

  def nodes(self) -> int:
    """Returns M, the tokens that a call of the target scores."""
    return self.beams + self.depth * self.width


@flax.struct.dataclass
class _Search:
  """The search between two calls."""
  texts: Texts  # of the target; its state is the node of each, within a call
  levels: Array  # `[B]` int32, of the texts
  block: Block  # of the draft model
  calls: Array  # `[B]` int32, of the target
  accepted: Array  # `[B, D + 1]` int32, calls by accepted levels


@flax.struct.dataclass
class _Nodes:
  """Nodes that are drafted; the first K are the beams, N a level follow."""
  tokens: Array  # `[B, T]` int32
  parents: Array  # `[B, T]` int32, their nodes
  beams: Array  # `[B, T]` int32, the beam that each continues
  mask: Array  # `[B, T, M]` bool, each node and its ancestors
  valid: Array  # `[B, T]` bool, whether the parent's text goes on
  log_probs: Array  # `[B, T]` float32, the draft model's; 0 of a beam


def decoder(level: level_search.Level, sizes: Sizes) -> Decoder:
  """Makes a decoder with the texts of beam search. `expand` of `level` is
  `beam.plain`. Statistics as in `level_search.decoder`; `accepted_by_depth`
  counts the drafted levels that calls of the target accepted."""
  search = functools.partial(_search, level, sizes)
  return Decoder(
      functools.partial(level_search.init_stats, level, sizes.beams,
                        depth=sizes.depth),
      functools.partial(level_search.search_step, search, level),
      max_slots_ahead=0, max_samples_per_node=sizes.width, needs_draft=True)


def _search(level, sizes: Sizes, context: Context, state: DecodeState):
  """Returns all texts, and fields of `Stats`."""
  limit = texts_lib.limit(context, state)
  newest = token_buffer.newest(state, 1)
  logits, cache = greedy_rollout.extend(
      context.target, context.target_params, state.target_cache, newest, 1)
  _, draft_cache = greedy_rollout.extend(
      context.draft, context.draft_params, state.draft_cache, newest, 1)
  batch, kept, ones = len(newest), sizes.beams * limit, jnp.ones_like(
      state.length)
  # The draft model needs slots for two tokens of each beam, and none for the
  # deepest level.
  draft_slots = kept + sizes.beams + sizes.nodes() - sizes.width
  search = _Search(
      texts_lib.grow(
          level.expand, sizes.beams, context, state.keys, ones - 1, logits,
          texts_lib.begin(cache, batch, limit, kept + sizes.nodes(),
                          jnp.zeros((batch, 1), jnp.int32), {})),
      ones, cache_lib.init_block(draft_cache, draft_slots), ones,
      jnp.zeros((batch, sizes.depth + 1), jnp.int32).at[:, 0].set(1))

  def active(search):
    return search.texts.alive.any(axis=1) & (search.levels < limit)

  def step(search):
    runs = active(search)
    drafted, draft_block = _draft(sizes, context, draft_cache, search, kept)
    logits, block = _score(sizes, context, cache, search, drafted, kept)
    texts, levels, nodes, targets = _verify(
        level, sizes, context, state.keys, search, drafted, logits, runs, limit)
    depths = (levels - search.levels - 1)[:, None]
    once = runs[:, None] & (depths == jnp.arange(sizes.depth + 1)[None])
    # What the draft model has not read, it reads when it begins again.
    read = nodes < sizes.nodes() - sizes.width
    return _Search(
        texts.replace(block=cache_lib.move(block, kept + nodes, targets)),
        levels, cache_lib.move(draft_block, kept + sizes.beams + nodes,
                               jnp.where(read, targets, _NOWHERE)),
        search.calls + runs.astype(jnp.int32),
        search.accepted + once.astype(jnp.int32))

  search = jax.lax.while_loop(lambda search: active(search).any(), step, search)
  again = search.calls - 1
  return search.texts, {
      "target_calls": search.calls, "draft_calls": 1 + again * sizes.depth,
      "nodes": again * sizes.depth * sizes.width,
      "accepted_by_depth": search.accepted}


def _kept_before(sizes: Sizes, search: _Search, kept, levels):
  """Returns `[B, K, K * L]` bool, each text's slots below some level `[B]`."""
  of_slot = (jnp.arange(kept) // sizes.beams)[None, None]
  mask = search.texts.mask[:, :sizes.beams, :kept]
  return mask & (of_slot < levels[:, None, None])


def _draft(sizes: Sizes, context: Context, cache: Cache, search: _Search, kept):
  """Searches beams of the draft model; returns all nodes and its block."""
  texts, count = texts_lib.first(search.texts, sizes.beams), sizes.nodes()
  beams = jnp.broadcast_to(jnp.arange(sizes.beams, dtype=jnp.int32)[None],
                           texts.lengths.shape)
  nodes = _Nodes(
      texts_lib.newest(texts), beams, beams, jnp.broadcast_to(
          jnp.eye(sizes.beams, count, dtype=bool)[None],
          (*beams.shape, count)), texts.alive,
      jnp.zeros(beams.shape, jnp.float32))
  logits, block = _read_beams(sizes, context, cache, search, kept)
  levels, scores, alive = [nodes], texts.beam, texts.alive
  # The first node of the level above, and of this one.
  above, first = 0, sizes.beams
  for i in range(sizes.depth):
    if i:
      logits, block = _read_level(sizes, context, cache, search, kept, i, nodes,
                                  block)
    log_probs = texts_lib.continued_log_probs(
        context, context.draft_warper, logits, alive)
    tokens, parents, scores = jax.vmap(lambda log_probs, scores: beam_lib.plain(
        None, log_probs, scores, sizes.width))(log_probs, scores)
    own = jnp.arange(count)[None] == first + jnp.arange(sizes.width)[:, None]
    pick = lambda x: texts_lib.pick(x, parents)
    nodes = _Nodes(tokens, above + parents, pick(nodes.beams),
                   pick(nodes.mask) | own[None], pick(alive), jax.vmap(
                       lambda x, i, token: x[i, token])(log_probs, parents,
                                                        tokens))
    levels.append(nodes)
    alive = token_buffer.go_on(context, nodes.valid, tokens) & (
        scores.log_probs > -jnp.inf)
    above, first = first, first + sizes.width
  return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *levels), block


def _read_beams(sizes: Sizes, context: Context, cache: Cache, search: _Search,
                kept):
  """Reads and keeps the last two tokens of beams; returns `[B, K, V]`."""
  texts, levels = texts_lib.first(search.texts, sizes.beams), search.levels
  order = jnp.arange(sizes.beams, dtype=jnp.int32)
  at = jnp.maximum(levels - 2, 0)[:, None, None]
  second = buffers.take_along(texts.tokens, jnp.broadcast_to(
      at, (*texts.lengths.shape, 1)), axis=-1)[..., 0]
  tokens = jnp.concatenate(
      [jnp.maximum(second, 0), texts_lib.newest(texts)], axis=1)
  older = _kept_before(sizes, search, kept, levels - 2)
  eye = jnp.broadcast_to(jnp.eye(sizes.beams, dtype=bool)[None],
                         (len(levels), sizes.beams, sizes.beams))
  # At the first level there is but one token after the prompt.
  two = eye & (levels > 1)[:, None, None]
  rest = jnp.zeros((len(levels), sizes.beams, (sizes.depth - 1) * sizes.width),
                   bool)
  mask = jnp.concatenate([
      jnp.concatenate([older, eye, jnp.zeros_like(eye), rest], axis=2),
      jnp.concatenate([older, two, eye, rest], axis=2)], axis=1)
  back = jnp.repeat(jnp.array([2, 1], jnp.int32), sizes.beams)[None]
  positions = (cache.length + levels)[:, None] - back
  logits, block = context.draft.forward(
      context.draft_params, tokens, positions, cache, search.block, kept, mask)
  before = _kept_before(sizes, search, kept, levels - 1) & ~older
  slots = jnp.where(before.any(axis=-1), jnp.argmax(before, axis=-1), _NOWHERE)
  targets = jnp.concatenate(
      [slots.astype(jnp.int32),
       ((levels - 1) * sizes.beams)[:, None] + order[None]], axis=1)
  sources = kept + jnp.arange(2 * sizes.beams, dtype=jnp.int32)[None]
  return logits[:, sizes.beams:], cache_lib.move(
      block, jnp.broadcast_to(sources, targets.shape), targets)


def _read_level(sizes: Sizes, context: Context, cache: Cache, search: _Search,
                kept, depth, nodes: _Nodes, block: Block):
  """Runs the draft model on a drafted level: logits `[B, N, V]`, and block."""
  older = _kept_before(sizes, search, kept, search.levels - 2)
  two = (nodes.beams[..., None] == jnp.arange(sizes.beams)[None, None]) & (
      search.levels > 1)[:, None, None]
  mask = jnp.concatenate([texts_lib.pick(older, nodes.beams), two,
                          nodes.mask[..., :-sizes.width]], axis=2)
  positions = jnp.broadcast_to(
      (cache.length + search.levels - 1 + depth)[:, None], nodes.tokens.shape)
  slot = kept + 2 * sizes.beams + (depth - 1) * sizes.width
  return context.draft.forward(context.draft_params, nodes.tokens, positions,
                               cache, block, slot, mask)


def _score(sizes: Sizes, context: Context, cache: Cache, search: _Search,
           drafted: _Nodes, kept):
  """Runs the target on all nodes: logits `[B, M, V]`, and its block."""
  older = _kept_before(sizes, search, kept, search.levels - 1)
  depths = jnp.concatenate([
      jnp.zeros(sizes.beams, jnp.int32),
      jnp.repeat(1 + jnp.arange(sizes.depth, dtype=jnp.int32), sizes.width)])
  positions = (cache.length + search.levels - 1)[:, None] + depths[None]
  mask = jnp.concatenate(
      [texts_lib.pick(older, drafted.beams), drafted.mask], axis=2)
  return context.target.forward(
      context.target_params, drafted.tokens, positions, cache,
      search.texts.block, kept, mask)


def _verify(level, sizes: Sizes, context: Context, keys, search: _Search,
            drafted: _Nodes, logits, runs, limit):
  """Goes on with beam search for as long as its beams are drafted. Returns
  texts without a block, levels `[B]`, accepted nodes `[B, J]`, and slots to
  keep them in, `_NOWHERE` for those that only fill up J."""
  order = jnp.arange(sizes.beams, dtype=jnp.int32)[None]

  def slots(levels, which):
    return jnp.where(which[:, None],
                     ((levels - 1) * sizes.beams)[:, None] + order, _NOWHERE)

  def step(carry, nodes):
    texts, levels, going = carry
    tokens, parents, valid, drafts, first = nodes
    expand = level.expand if not sizes.relaxed else relaxed_beams.expand(
        (tokens, parents, valid, drafts))
    new = texts_lib.grow(
        expand, sizes.beams, context, keys, levels,
        texts_lib.pick(logits, texts.state[:, :sizes.beams]), texts)
    same = (tokens[:, None] == texts_lib.newest(new)[..., None]) & (
        parents[:, None] == new.state[..., None]) & valid[:, None]
    # A text that has ended needs no node.
    there = (same.any(axis=-1) | ~new.alive).all(axis=1)
    node = first + jnp.argmax(same, axis=-1).astype(jnp.int32)
    new = new.replace(state=node)
    texts = texts_lib.where(going, new, texts)
    levels += going.astype(jnp.int32)
    accepted = going & there
    going = accepted & texts.alive.any(axis=1) & (levels < limit)
    return (texts, levels, going), (node[:, :sizes.beams],
                                    slots(levels, accepted))

  def by_level(x):
    """Levels first; none of the level after the last is drafted."""
    x = x[:, sizes.beams:].reshape(len(x), sizes.depth, sizes.width)
    return jnp.concatenate([x, jnp.zeros_like(x[:, :1])], axis=1).swapaxes(0, 1)

  # As large as a node of the level after the last would be.
  firsts = sizes.beams + sizes.width * jnp.arange(sizes.depth + 1,
                                                  dtype=jnp.int32)
  # Texts that have ended are at none of the nodes.
  shape = search.texts.lengths.shape
  every = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32)[None], shape)
  roots = every[:, :sizes.beams]
  (texts, levels, _), (nodes, targets) = jax.lax.scan(
      step,
      (search.texts.replace(block=None, state=every), search.levels, runs),
      (*map(by_level, (drafted.tokens, drafted.parents, drafted.valid,
                       drafted.log_probs)), firsts))
  join = lambda first, x: jnp.concatenate([first, *x], axis=1)
  return texts, levels, join(roots, nodes), join(slots(search.levels, runs),
                                                 targets)
