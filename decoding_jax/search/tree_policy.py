"""Monte Carlo tree search over tokens, in arrays of a fixed size.

A simulation descends to a new node, completes its text and backs the value up.
A node's value is its largest: greedy completions are not random. Where a text
is a prefix of one completed from an ancestor, that completion is reused, and
the node costs the one forward for its children.
"""

import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.search import search_tree, texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import (Array, Block, Context, DecodeState, Decoder,
                                NONE, PAD)


class Policy(NamedTuple):
  """The sizes and constants of a search."""
  num_children: int  # K, the most probable next tokens
  simulations: int  # S
  exploration: float  # c of P-UCB
  base: float  # c_base of P-UCB


@flax.struct.dataclass
class Nodes(search_tree.Tree):
  """The nodes of each row; expansion 0 expands the root. A value is the
  largest reward of a text through the node, 0 of one without."""
  priors: Array  # `[B, M]` float32, probability after the parent; 0 of none
  counts: Array  # `[B, M]` int32, texts through the node
  # `[B, M]` int32, the first of its K children; `NONE` of a node without.
  first: Array


@flax.struct.dataclass
class _Search:
  """The carry of a search from simulation to simulation."""
  tree: Nodes  # the nodes
  block: Block  # keys of their tokens, and of a text's rest
  # S completed texts of each row, as far as there are, without masks.
  known: Texts
  # `[B, S]` int32, how long each was when it was completed; more than any text
  # of one that is not there.
  begun: Array
  values: Array  # `[B, S]` float32, their rewards
  over: Array  # `[B]` bool
  order: Array  # `[B, S, L]` int32, texts of the simulations' nodes
  calls: Array  # `[B]` int32, of the target
  reward_calls: Array  # `[B]` int32


def decoder(policy: Policy) -> Decoder:
  """Makes a decoder whose only step searches, for temperature 0. The result is
  the best simulated text, of equal ones the first. `stats.extra` has `simulated
  [B, S, L]` int32, the text of each simulation's node, then `PAD`; `simulations
  [B]`; and `reward_calls [B]`, of new texts."""
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
  zero = jnp.zeros((batch, 1), jnp.float32)
  tree = search_tree.roots(
      Nodes, root, search_tree.size(1 + policy.simulations,
                                    policy.num_children),
      zero, priors=zero, counts=none[:, None], first=none[:, None] + NONE)
  tree = _expand(policy, context, tree, none, 0, grown.logits, ~state.done)
  known = texts_lib.repeat(texts_lib.empty(batch, limit, 0),
                           policy.simulations)
  blank = jnp.full(known.lengths.shape, -jnp.inf, jnp.float32)
  search = _Search(tree, grown.block, known, known.lengths + limit + 1, blank,
                   state.done, known.tokens, grown.calls, none)
  _, search = jax.lax.while_loop(
      lambda carry: (carry[0] < policy.simulations) & ~carry[1].over.all(),
      functools.partial(_simulate, policy, context, state),
      (jnp.int32(0), search))
  # Of equal ones the first; what was not simulated is there no more than -inf.
  best = jnp.argmax(search.values, axis=1)
  simulations = (search.begun <= limit).sum(axis=1, dtype=jnp.int32)
  return texts_lib.commit(
      state, search_tree.at(search.known, best),
      {"simulated": search.order, "simulations": simulations,
       "reward_calls": search.reward_calls}, target_calls=search.calls)


def _simulate(policy: Policy, context: Context, state: DecodeState, carry):
  """Selects a node of each row, completes its text, and learns its value."""
  s, search = carry
  running, limit = ~search.over, search.known.tokens.shape[-1]
  nodes, visited = jax.vmap(functools.partial(_select, policy))(search.tree)
  texts = search_tree.at(search.tree.texts, nodes)
  expands = running & texts.alive[:, 0]
  hits, known = jax.vmap(_find)(search.known, search.begun, texts)
  # The node's own slot, then slots that every simulation overwrites.
  grown = texts_lib.extend(
      context, state, state.target_cache, search.block,
      texts.replace(alive=expands[:, None]), steps=limit,
      slot=lambda i: jnp.where(i == 0, 1 + s, policy.simulations + i),
      choose=functools.partial(texts_lib.greedy, context),
      most=jnp.where(hits, 1, limit))
  whole = texts_lib.where(hits, search_tree.at(search.known, known),
                          grown.texts.replace(mask=search.known.mask[:, :1]))
  value = jnp.where(hits, search_tree.at(search.values, known)[:, 0],
                    texts_lib.rewards(context, whole)[:, 0])
  tree = _expand(policy, context, search.tree, nodes, 1 + s, grown.logits,
                 expands)
  tree = jax.vmap(_learn)(tree, visited, value, running)
  put = lambda x, y: x.at[:, s].set(jax.vmap(jnp.where)(running, y, x[:, s]))
  return s + 1, _Search(
      tree, grown.block, jax.tree.map(
          lambda x, y: put(x, y[:, 0]), search.known, whole),
      put(search.begun, texts.lengths[:, 0]), put(search.values, value),
      search.over | (value >= context.reward.maximum),
      put(search.order, texts.tokens[:, 0]), search.calls + grown.calls,
      search.reward_calls + (running & ~hits).astype(jnp.int32))


def _find(known: Texts, begun, text: Texts):
  """Finds whether an ancestor of a text has completed it, and its index."""
  length = text.lengths[0]
  order = jnp.arange(known.tokens.shape[-1])
  same = (begun <= length) & (known.lengths >= length) & (
      (known.tokens == text.tokens) | (order >= length)[None]).all(axis=-1)
  return same.any(), jnp.argmax(same).astype(jnp.int32)


def _select(policy: Policy, tree: Nodes):
  """Goes down to a node that is new or ends; also marks the way `[M]`."""
  order = jnp.arange(len(tree.values))

  def descend(carry):
    node, on_way = carry
    children = tree.first[node] + jnp.arange(
        policy.num_children, dtype=jnp.int32)
    scores = _scores(policy, 1 + tree.counts[node], tree.values[children],
                     tree.counts[children], tree.priors[children])
    child = children[jnp.argmax(scores)]
    return child, on_way | (order == child)

  return jax.lax.while_loop(lambda carry: tree.first[carry[0]] != NONE, descend,
                            (jnp.int32(0), order == 0))


def _scores(policy: Policy, visits, values, counts, priors):
  """Returns P-UCB of the children of a node, `[K]` float32; -inf of none."""
  visits, counts = (x.astype(jnp.float32) for x in (visits, counts))
  weight = jnp.log((visits + policy.base + 1) / policy.base) + (
      policy.exploration)
  bonus = weight * priors * jnp.sqrt(jnp.log(visits)) / (1 + counts)
  return jnp.where(priors > 0, values + bonus, -jnp.inf)


def _expand(policy: Policy, context: Context, tree: Nodes, nodes, number,
            logits, rows) -> Nodes:
  """Gives `nodes [B]` their children after `logits [B, 1, V]`, in `rows`."""
  best, tokens = sampling.top_k(
      texts_lib.next_log_probs(context.warper, logits)[:, 0],
      policy.num_children)
  texts = search_tree.at(tree.texts, nodes)
  own = jnp.arange(texts.mask.shape[-1])[None, None] == number
  texts = texts_lib.repeat(texts.replace(mask=texts.mask | own),
                           policy.num_children)
  children = texts_lib.append(
      context, texts, tokens, jnp.repeat(logits, policy.num_children, axis=1))
  tree = search_tree.insert(
      tree, number, nodes, rows, children, jnp.zeros_like(best),
      priors=jnp.exp(best), counts=0, first=NONE)
  return tree.replace(first=jnp.where(
      search_tree.is_node(tree, nodes, rows),
      1 + number * policy.num_children, tree.first))


def _learn(tree: Nodes, on_way, value, running) -> Nodes:
  """Takes a value up to the root, in one row."""
  on_way &= running
  # A node whose values are all negative must not get 0, the value of no text.
  first = tree.counts == 0
  values = jnp.where(first, value, jnp.maximum(tree.values, value))
  return tree.replace(
      values=jnp.where(on_way, values, tree.values),
      counts=tree.counts + on_way.astype(jnp.int32))
