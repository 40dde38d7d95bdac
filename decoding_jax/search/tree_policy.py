"""Monte Carlo tree search over tokens, in arrays of a fixed size.

A simulation goes down from the root to a node that is new, writes its text to
the end, and takes what that is worth back up. Of the values of a node the
largest one counts: a model that continues greedily makes no chance of it.
"""

import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import (Array, Block, Context, DecodeState, Decoder,
                                NONE, PAD)


class Policy(NamedTuple):
  """The sizes and constants of a search.

  Attributes:
    num_children: K, the most probable next tokens.
    simulations: S.
    exploration: c of P-UCB.
    base: c_base of P-UCB.
  """
  num_children: int
  simulations: int
  exploration: float
  base: float


@flax.struct.dataclass
class Tree:
  """The nodes of one row: the root, its children, those of simulation 0, ...

  Attributes:
    tokens: `[M]` int32, M = 1 + (1 + S) * K; of the root none.
    priors: `[M]` float32, probability after the parent; 0 of none.
    log_probs: `[M]` float32, the target's own.
    values: `[M]` float32, the largest reward of a text through the node; 0 of
      one without.
    counts: `[M]` int32, texts through the node.
    visits: `[M]` int32, 0 of a node that is new; else 1 more than its texts.
    first: `[M]` int32, the first of its K children; `NONE` of a node without.
    slots: `[M]` int32, that of its token.
  """
  tokens: Array
  priors: Array
  log_probs: Array
  values: Array
  counts: Array
  visits: Array
  first: Array
  slots: Array


@flax.struct.dataclass
class _Search:
  """What a search carries from simulation to simulation."""
  tree: Tree
  block: Block
  best: Texts
  value: Array
  over: Array
  order: Array
  calls: Array
  reward_calls: Array


def decoder(policy: Policy) -> Decoder:
  """Makes a decoder whose only step searches the whole text.

  Args:
    policy: of the search.

  Returns:
    The decoder, for temperature 0. The result is the best text that a
    simulation has written, of equal ones the first. Its `stats.extra` has
    `simulated [B, S, L]` int32, the text of each simulation's node, `PAD` after
    it; `simulations [B]`, and `reward_calls [B]`.
  """
  return Decoder(functools.partial(_init, policy),
                 functools.partial(_step, policy), max_slots_ahead=0,
                 max_samples_per_node=policy.num_children, needs_reward=True)


def _init(policy: Policy, context: Context, state: DecodeState) -> DecodeState:
  none = jnp.zeros_like(state.length)
  shape = len(none), policy.simulations, texts_lib.limit(context, state)
  order = jnp.full(shape, PAD, jnp.int32)
  return texts_lib.no_stats(state, {
      "simulated": order, "simulations": none, "reward_calls": none})


def _step(policy: Policy, context: Context, state: DecodeState) -> DecodeState:
  """Simulates, and commits the best text of each row."""
  limit, batch = texts_lib.limit(context, state), len(state.length)
  # A slot for each node that is expanded, and for the rest of one text.
  slots = 1 + policy.simulations + limit
  root = texts_lib.empty(batch, limit, slots)
  root = root.replace(alive=~state.done[:, None])
  grown = texts_lib.extend(
      context, state, state.target_cache,
      cache_lib.init_block(state.target_cache, slots), root, steps=1,
      slot=lambda i: i, choose=functools.partial(texts_lib.greedy, context))
  none = jnp.zeros(batch, jnp.int32)
  tree = _expand(policy, context, _empty(policy, batch), none, 0,
                 grown.logits[:, 0], ~state.done)
  search = _Search(
      tree, grown.block, root, jnp.full(batch, -jnp.inf, jnp.float32),
      state.done, jnp.full((batch, policy.simulations, limit), PAD, jnp.int32),
      grown.calls, none)
  _, search = jax.lax.while_loop(
      lambda carry: (carry[0] < policy.simulations) & ~carry[1].over.all(),
      functools.partial(_simulate, policy, context, state),
      (jnp.int32(0), search))
  return texts_lib.commit(
      state, search.best,
      {"simulated": search.order, "simulations": search.reward_calls,
       "reward_calls": search.reward_calls}, target_calls=search.calls)


def _simulate(policy: Policy, context: Context, state: DecodeState, carry):
  """Selects a node of each row, completes its text, and learns its value."""
  s, search = carry
  running, slots = ~search.over, search.best.mask.shape[-1]
  limit = search.best.tokens.shape[-1]
  nodes, texts, visited = jax.vmap(functools.partial(
      _select, policy, limit, slots, context.eos_id))(search.tree)
  is_end = texts_lib.complete(context, texts)[:, 0]
  # The node's own slot, then those that every simulation writes anew.
  grown = texts_lib.extend(
      context, state, state.target_cache, search.block,
      texts.replace(alive=(running & ~is_end)[:, None]), steps=limit,
      slot=lambda i: jnp.where(i == 0, 1 + s, policy.simulations + i),
      choose=functools.partial(texts_lib.greedy, context))
  value = texts_lib.rewards(context, grown.texts)[:, 0]
  tree = _expand(policy, context, search.tree, nodes, 1 + s,
                 grown.logits[:, 0], running & ~is_end)
  tree = jax.vmap(_learn)(tree, visited, value, running)
  # The first text is taken whatever it is worth, -inf included.
  better = running & ((value > search.value) | (s == 0))
  best = texts_lib.where(better, grown.texts, search.best)
  best_value = jnp.where(better, value, search.value)
  return s + 1, _Search(
      tree, grown.block, best, best_value,
      search.over | (best_value >= context.reward.maximum),
      search.order.at[:, s].set(
          jnp.where(running[:, None], texts.tokens[:, 0], PAD)),
      search.calls + grown.calls,
      search.reward_calls + running.astype(jnp.int32))


def _empty(policy: Policy, batch) -> Tree:
  """Returns trees of roots that are new."""
  size = 1 + (1 + policy.simulations) * policy.num_children
  none = jnp.zeros((batch, size), jnp.int32)
  zeros = none.astype(jnp.float32)
  return Tree(none, zeros, zeros, zeros, none, none, none + NONE, none)


def _select(policy: Policy, limit, slots, eos_id, tree: Tree):
  """Goes down from the root to a node that is new, or ends a text; one row.

  Returns:
    node `[]` int32, its text as `Texts` of one, and `[M]` bool, the nodes on
    the way, its own one included.
  """
  size = tree.tokens.shape[0]

  def goes_on(carry):
    node, path, _ = carry
    length = path.lengths[0]
    ends = (length > 0) & (tree.tokens[node] == eos_id).any() | (
        length == limit)
    return (tree.first[node] != NONE) & ~ends

  def descend(carry):
    node, path, on_way = carry
    children = tree.first[node] + jnp.arange(
        policy.num_children, dtype=jnp.int32)
    scores = _scores(policy, tree.visits[node], tree.values[children],
                     tree.counts[children], tree.priors[children])
    child = children[jnp.argmax(scores)]
    put = lambda x, y: x.at[0, path.lengths[0]].set(y[child], mode="drop")
    path = path.replace(
        tokens=put(path.tokens, tree.tokens),
        log_probs=put(path.log_probs, tree.log_probs),
        lengths=path.lengths + 1,
        mask=path.mask | (jnp.arange(slots) == tree.slots[node])[None])
    return child, path, on_way | (jnp.arange(size) == child)

  path = jax.tree.map(lambda x: x[0], texts_lib.empty(1, limit, slots))
  return jax.lax.while_loop(
      goes_on, descend, (jnp.int32(0), path, jnp.arange(size) == 0))


def _scores(policy: Policy, visits, values, counts, priors):
  """Returns P-UCB of the children of a node, `[K]` float32; -inf of none."""
  visits, counts = (x.astype(jnp.float32) for x in (visits, counts))
  weight = jnp.log((visits + policy.base + 1) / policy.base) + (
      policy.exploration)
  bonus = weight * priors * jnp.sqrt(jnp.log(visits)) / (1 + counts)
  return jnp.where(priors > 0, values + bonus, -jnp.inf)


def _expand(policy: Policy, context: Context, tree: Tree, nodes, number,
            logits, rows) -> Tree:
  """Gives a node of some rows its children, in places that are the same of all.

  Args:
    policy: of the search.
    context: holds the token mask.
    tree: of all rows.
    nodes: `[B]` int32.
    number: of the expansion, and of the slot of the nodes' tokens.
    logits: `[B, V]` after the nodes.
    rows: `[B]` bool.

  Returns:
    The trees.
  """
  log_probs = texts_lib.next_log_probs(context.warper, logits[:, None])[:, 0]
  best, tokens = sampling.top_k(log_probs, policy.num_children)
  place = 1 + number * policy.num_children
  put = lambda x, y: jax.lax.dynamic_update_slice_in_dim(
      x, jnp.where(rows[:, None], y, 0).astype(x.dtype), place, axis=1)
  own = rows[:, None] & (jnp.arange(tree.tokens.shape[1])[None] ==
                         nodes[:, None])
  return tree.replace(
      tokens=put(tree.tokens, tokens), priors=put(tree.priors, jnp.exp(best)),
      log_probs=put(tree.log_probs, token_buffer.log_probs(logits[:, None],
                                                           tokens)),
      first=jnp.where(own, place, tree.first),
      slots=jnp.where(own, number, tree.slots),
      visits=jnp.where(own, 1, tree.visits))


def _learn(tree: Tree, on_way, value, running) -> Tree:
  """Takes a value up to the root, in one row."""
  on_way &= running
  more = on_way.astype(jnp.int32)
  # A node whose values are all negative has not that of no text, 0.
  first = tree.counts == 0
  values = jnp.where(first, value, jnp.maximum(tree.values, value))
  return tree.replace(
      values=jnp.where(on_way, values, tree.values),
      counts=tree.counts + more, visits=tree.visits + more)
