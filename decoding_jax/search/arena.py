"""Best-first search over partial texts, in arrays of a fixed size.

An open list is a column of the arena, and argmax replaces a heap: of equal
entries the oldest. Each row expands its own node; finished rows wait.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.search import search_tree, texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import (Array, Block, Context, DecodeState, Decoder,
                                NONE)


@flax.struct.dataclass
class Nodes(search_tree.Tree):
  """The partial texts of each row; values are of their rewards."""
  depths: Array  # `[B, M]` int32, steps from the root
  costs: Array  # `[B, M]` float32, what the rules have added up along the path
  ended: Array  # `[B, M]` bool, whether the text is complete
  budgets: Array  # `[B, M]` int32, how often a node may be expanded


class Rules(NamedTuple):
  """The rules of a search; all functions see all rows."""
  num_children: int  # K, of an expansion
  steps: int  # most tokens that a child adds to its parent's
  expansions: int  # E, at most
  pause: tuple[int, ...]  # tokens that end a step
  # `(keys [B], context, first [B], i, logits [B, K, V]) -> [B, K]` int32, the
  # next tokens of the children; `first` says whether their node is expanded for
  # the first time.
  choose: Callable[..., Array]
  # `(context, cost [B, 1], parent [B, 1], values [B, K]) -> [B, K]`, costs of
  # children by their parent's and the values of both.
  cost: Callable[..., Array]
  # `(context, nodes) -> [B, M]`; the highest is the best.
  priority: Callable[..., Array]
  # `(values, depths, baseline [B, 1]) -> int32` of the same shape as the
  # values, how often a node may be expanded.
  budget: Callable[..., Array]
  # `(nodes, index [B], baseline [B]) -> [B]` bool, whether a search is over
  # when it comes to a node.
  stops: Callable[..., Array]
  # `(rewards) -> float32` of the same shape, the values of texts.
  value: Callable[[Array], Array] = lambda rewards: rewards
  # Whether the greedy text is made first; its value is the baseline, and it is
  # the result if no complete text is better.
  has_baseline: bool = False


@flax.struct.dataclass
class _Search:
  """The carry of a search from expansion to expansion."""
  nodes: Nodes
  block: Block
  over: Array
  order: Array
  calls: Array
  reward_calls: Array


def decoder(rules: Rules, max_samples_per_node: int = 1) -> Decoder:
  """Makes a decoder whose only step searches the whole text. The result is the
  best complete text, or the best partial one, completed. `stats.extra` has
  `expanded [B, E]` int32, nodes in the order of expansion, then `NONE` (node 0
  is the empty text, children of expansion e are nodes 1 + e * K to (e + 1) *
  K); `node_values [B, 1 + E * K]`, NaN of unused nodes; and `reward_calls
  [B]`."""
  return Decoder(functools.partial(_init, rules),
                 functools.partial(_step, rules), max_slots_ahead=0,
                 max_samples_per_node=max_samples_per_node, needs_reward=True)


def distinct_tokens(context: Context, i, logits):
  """Returns greedy tokens `[B, K]`, at step 0 the K most probable ones."""
  log_probs = texts_lib.next_log_probs(context.warper, logits)
  best, first = sampling.top_k(log_probs[:, 0], logits.shape[1])
  first = jnp.where(jnp.isneginf(best), first[:, :1], first)
  return jnp.where(i == 0, first, sampling.most_probable(log_probs))


def sampled_tokens(keys, context: Context, i, logits):
  """Draws the next tokens, `[B, W]` int32, independently of each other."""
  def row(key, log_probs):
    keys = random.split(random.fold_in(key, i), len(log_probs))
    return jax.vmap(sampling.draw)(keys, log_probs)

  return jax.vmap(row)(keys, texts_lib.next_log_probs(context.warper, logits))


def _init(rules: Rules, context: Context, state: DecodeState) -> DecodeState:
  del context
  none = jnp.zeros_like(state.length)
  size = len(none), search_tree.size(rules.expansions, rules.num_children)
  extra = {"expanded": jnp.full((len(none), rules.expansions), NONE, jnp.int32),
           "node_values": jnp.zeros(size, jnp.float32), "reward_calls": none}
  return texts_lib.no_stats(state, extra)


def _step(rules: Rules, context: Context, state: DecodeState) -> DecodeState:
  """Searches, and commits the best text of each row."""
  limit = texts_lib.limit(context, state)
  # The last slots hold the greedy text, then the text to complete.
  scratch = rules.expansions * rules.num_children * rules.steps
  write = functools.partial(
      texts_lib.extend, context, state, state.target_cache, steps=limit,
      slot=lambda i: scratch + i)
  root = texts_lib.empty(len(state.length), limit, scratch + limit)
  root = root.replace(alive=~state.done[:, None])
  block = cache_lib.init_block(state.target_cache, scratch + limit)
  greedy, baseline, calls = None, None, jnp.zeros_like(state.length)
  if rules.has_baseline:
    grown = write(block, root,
                  choose=functools.partial(texts_lib.greedy, context))
    greedy, block, calls = grown.texts, grown.block, grown.calls
    baseline = rules.value(texts_lib.rewards(context, greedy))[:, 0]
  search = _search(rules, context, state, _begin(
      rules, context, state, root, block, calls, baseline), baseline)
  best, calls = (_better(rules, context, search.nodes, greedy, baseline)
                 if rules.has_baseline else
                 _completed(rules, context, state, search, write))
  nodes = search.nodes
  extra = {"expanded": search.order, "reward_calls": search.reward_calls,
           "node_values": jnp.where(nodes.used, nodes.values, jnp.nan)}
  return texts_lib.commit(state, best, extra,
                          target_calls=search.calls + calls)


def _begin(rules: Rules, context: Context, state: DecodeState, root: Texts,
           block, calls, baseline) -> _Search:
  """Returns searches of roots alone, of the calls that were made before."""
  value = rules.value(texts_lib.rewards(context, root))
  # Of the prompt alone, and of the greedy text.
  reward_calls = jnp.where(state.done, 0, 1 + int(rules.has_baseline))
  order = jnp.full((len(value), rules.expansions), NONE, jnp.int32)
  return _Search(_empty(rules, root, value, baseline), block, state.done, order,
                 calls, reward_calls.astype(jnp.int32))


def _better(rules: Rules, context: Context, nodes: Nodes, greedy, baseline):
  """Returns the best complete text or the greedy one, and no more calls."""
  best, complete = _best(rules, context, nodes)
  worse = ~complete | (baseline > search_tree.at(nodes.values, best)[:, 0])
  return texts_lib.where(worse, greedy, search_tree.at(nodes.texts, best)), 0


def _completed(rules: Rules, context: Context, state: DecodeState,
               search: _Search, write):
  """Returns the best text, completed if it is not complete; and the calls."""
  best, complete = _best(rules, context, search.nodes)
  keys = jax.vmap(random.fold_in, (0, None))(state.keys, rules.expansions)
  texts = search_tree.at(search.nodes.texts, best).replace(
      alive=~(complete | state.done)[:, None])
  grown = write(search.block, texts, choose=functools.partial(
      rules.choose, keys, context, jnp.zeros_like(complete)))
  return grown.texts, grown.calls


def _search(rules: Rules, context: Context, state: DecodeState,
            search: _Search, baseline) -> _Search:
  """Expands nodes until all searches are over."""
  def expand(carry):
    e, search = carry
    nodes = search.nodes
    index, none = _next(rules, context, nodes)
    over = search.over | none | rules.stops(nodes, index, baseline)
    parent = search_tree.at(nodes.texts, index).replace(alive=~over[:, None])
    keys = jax.vmap(random.fold_in, (0, None))(state.keys, e)
    first = search_tree.at(nodes.expansions, index)[:, 0] == 0
    width = rules.num_children
    grown = texts_lib.extend(
        context, state, state.target_cache, search.block,
        texts_lib.repeat(parent, width), steps=rules.steps,
        slot=lambda i: (e * rules.steps + i) * width,
        choose=functools.partial(rules.choose, keys, context, first),
        pause=rules.pause)
    running = (~over).astype(jnp.int32)
    nodes = _insert(rules, context, nodes, e, index, grown.texts, ~over,
                    baseline)
    return e + 1, _Search(
        nodes, grown.block, over,
        search.order.at[:, e].set(jnp.where(over, NONE, index)),
        search.calls + grown.calls, search.reward_calls + running * width)

  return jax.lax.while_loop(
      lambda carry: (carry[0] < rules.expansions) & ~carry[1].over.all(),
      expand, (jnp.int32(0), search))[1]


def _empty(rules: Rules, root: Texts, value, baseline) -> Nodes:
  """Returns arenas in which there are roots alone."""
  none = jnp.zeros_like(root.lengths)
  return search_tree.roots(
      Nodes, root, search_tree.size(rules.expansions, rules.num_children),
      value, depths=none, costs=jnp.zeros_like(value), ended=none > 0,
      budgets=rules.budget(value, none, _column(baseline)))


def _available(nodes: Nodes):
  """Returns `[B, M]` bool, the open list: complete texts are on it as well."""
  return nodes.used & (nodes.ended | (nodes.expansions < nodes.budgets))


def _next(rules: Rules, context: Context, nodes: Nodes):
  """Returns the best open node `[B]` int32, and whether there is none `[B]`."""
  open_ = _available(nodes)
  return _first_best(rules.priority(context, nodes), open_), ~open_.any(axis=1)


def _best(rules: Rules, context: Context, nodes: Nodes):
  """Returns the node to end with `[B]`, and whether its text is complete."""
  complete = nodes.used & nodes.ended
  some = complete.any(axis=1)
  among = jnp.where(some[:, None], complete, _available(nodes))
  return _first_best(rules.priority(context, nodes), among), some


def _first_best(priority, among):
  """Returns the first of the best of some nodes, `[B]` int32."""
  best = jnp.where(among, priority, -jnp.inf).max(axis=1, keepdims=True)
  # Not the argmax: the best priority of these may be -inf.
  return jnp.argmax(among & (priority >= best), axis=1).astype(jnp.int32)


def _insert(rules: Rules, context: Context, nodes: Nodes, e, index,
            children: Texts, running, baseline) -> Nodes:
  """Adds the children of a node of each row, where its search goes on."""
  values = rules.value(texts_lib.rewards(context, children))
  at = lambda x: search_tree.at(x, index)
  depths = jnp.broadcast_to(at(nodes.depths) + 1, values.shape)
  return search_tree.insert(
      nodes, e, index, running, children, values, depths=depths,
      costs=rules.cost(context, at(nodes.costs), at(nodes.values), values),
      ended=texts_lib.complete(context, children),
      budgets=rules.budget(values, depths, _column(baseline)))


def _column(baseline):
  return None if baseline is None else baseline[:, None]
