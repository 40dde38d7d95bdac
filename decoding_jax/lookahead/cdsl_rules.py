"""Gates of CDSL: what becomes of a drafted lookahead."""

from typing import Any, Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.lookahead import candidates
from decoding_jax.lookahead.draft_lookahead import Lookahead
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import expanders
from decoding_jax.types import (Array, Cache, Context, DecodeState, Drafter,
                                Stats)
from decoding_jax.validation import values


# S1 to S4.
STATES = 4


class Gates(NamedTuple):
  """How CDSL decides what becomes of a lookahead.

  Attributes:
    name: as it stands in that of a method.
    width: tokens of a level of a draft.
    drafter: `(width, n) -> Drafter`, where that is more than one.
    slack: see `draft_lookahead.chain`.
    needed: of a lookahead of 0, 1, ..., n tokens, how many must be accepted
      for acceptance to be high.
    on_low_acceptance: `proceed` or `give_up`, what is done where it is not.
    max_draft_lag: tokens that the draft cache may lack thereafter, the newest
      included.
    test: `(threshold, maximum, before, after) -> bool` of rewards.
    threshold: of the test, or None.
    num_to_commit: `(accepted, drafted) -> tokens` that are committed of a
      lookahead.
    only_if_gain: whether no more is committed than the reward has risen by.
    commit_rollout: whether a search commits the roll-out that it has found as
      well.
  """
  name: str
  width: int
  drafter: Callable[[int, int], Drafter]
  slack: float
  needed: tuple[int, ...]
  on_low_acceptance: Callable[..., Any]
  max_draft_lag: int
  test: Callable[..., Array]
  threshold: float | None
  num_to_commit: Callable[..., Array]
  only_if_gain: bool
  commit_rollout: bool


@flax.struct.dataclass
class Rest:
  """A lookahead that the target goes on with, from the first mismatch.

  Attributes:
    tokens: `[B, n + 1]` int32, those that were the same included.
    log_probs: `[B, n + 1]` float32, the target's own, after the mismatch.
    count: `[B]` int32, how many tokens there are.
    passed: `[B]` bool, whether the reward lets them through.
    cache: the target's; where they passed, it holds them after its length.
    calls: `[B]` int32, forwards of the target.
    reward_calls: `[B]` int32.
  """
  tokens: Array
  log_probs: Array
  count: Array
  passed: Array
  cache: Cache
  calls: Array
  reward_calls: Array


@flax.struct.dataclass
class Found:
  """What a search has found, in rows that needed one.

  Attributes:
    rows: `[B]` bool, which ones did.
    tokens: `[B, n + 1]` int32, the chosen one and its roll-out.
    log_probs: `[B, n + 1]` float32, the target's own where it rolls out.
    count: `[B]` int32, how many of them are committed.
    calls: `[B]` int32, forwards of the roller.
    cache: the target's; it holds what is committed after its length.
  """
  rows: Array
  tokens: Array
  log_probs: Array
  count: Array
  calls: Array
  cache: Cache


def make_gates(lookahead, width, tree, slack, acceptance_threshold,
               low_acceptance, reward_test, reward_threshold, commit,
               search_commit, rollout) -> Gates:
  """Checks the options of CDSL that are not those of a search.

  Args:
    lookahead: n, a positive integer.
    width: a positive integer.
    tree: "rsd_s" or "rsd_c".
    slack: not less than 0.
    acceptance_threshold: 0 to 1.
    low_acceptance: "target_rollout" or "cdlh_step".
    reward_test: "progress" or "absolute".
    reward_threshold: None for "progress", a number for "absolute".
    commit: "prefix", "rise" or "full".
    search_commit: "token", or "roll_out" where the target rolls out.
    rollout: what rolls out.

  Returns:
    The gates.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  values.check_positive("width", width)
  drafter = values.check_one_of("tree", tree, _TREES)
  values.check_number("slack", slack, 0)
  values.check_number("acceptance_threshold", acceptance_threshold, 0, 1)
  low, late = values.check_one_of("low_acceptance", low_acceptance, {
      "target_rollout": (proceed, lookahead + 1), "cdlh_step": (give_up, 2)})
  test = values.check_one_of("reward_test", reward_test, _TESTS)
  if test is _progress:
    values.check_one_of("reward_threshold", reward_threshold, {None: None})
  else:
    values.check_number("reward_threshold", reward_threshold)
  taken, only_if_gain = values.check_one_of("commit", commit, _TAKEN)
  if width > 1:
    # There is no one draft to commit the whole of.
    values.check_one_of("commit of width > 1", commit,
                        {"prefix": None, "rise": None})
  whole = values.check_one_of("search_commit", search_commit,
                              {"token": False, "roll_out": True})
  if whole:
    # What the draft has rolled out is not what the target would say.
    values.check_one_of("rollout where search_commit='roll_out': rollout",
                        rollout, {"target": None})
    late = lookahead + 1
  needed = [sum(same / max(size, 1) < acceptance_threshold
                for same in range(size + 1)) for size in range(lookahead + 1)]
  limit = "" if reward_threshold is None else f" {reward_threshold:g}"
  shape = f"{tree}({width}x{lookahead})" if width > 1 else "chain"
  name = (f"{shape}, slack={slack:g}, tau={acceptance_threshold:g}, "
          f"low={low_acceptance}, test={reward_test}{limit}, commit={commit}, "
          f"search={search_commit}")
  return Gates(name, int(width), drafter, float(slack), tuple(needed), low,
               int(late), test, reward_threshold, taken, only_if_gain, whole)


def proceed(passes, context: Context, state: DecodeState, drafted: Lookahead,
            rows, states) -> Rest:
  """The target's own lookahead from the mismatch, and what it is worth.

  Args:
    passes: `reward [B] -> [B]` bool.
    context: holds target and reward.
    state: what was committed.
    drafted: what was drafted after it.
    rows: `[B]` bool, where this is wanted.
    states: of the reward.

  Returns:
    The rest; it passes in none of the other rows.
  """
  same, steps = drafted.same[:, None], drafted.tokens.shape[1]
  order, start = jnp.arange(steps + 1)[None], state.length + drafted.same
  cache = drafted.target_cache
  room = jnp.minimum(steps + 1 - drafted.same, state.limit - start)
  after = lambda x: buffers.take_along(
      x[:, 0], jnp.maximum(order - same, 0), axis=1)

  def branch():
    path = greedy_rollout.roll_out(
        context, (context.target, context.target_params,
                  cache.replace(length=start)),
        buffers.take_along(drafted.following, same, axis=1),
        jnp.where(rows, room, 0), steps)
    tokens = jnp.where(order < same, _padded(drafted.tokens),
                       after(path.tokens))
    count = drafted.same + path.valid[:, 0].sum(
        axis=1, dtype=jnp.int32)
    passed = rows & passes(
        text_reward.value_after(context, states, tokens, count))
    return (tokens, after(path.log_probs), count, passed, path.block,
            path.calls)

  *found, passed, block, calls = _where_any(rows, branch)
  # In other rows nothing that may yet be committed is overwritten.
  cache = cache.replace(length=jnp.where(passed, start, state.length + steps))
  slots = jnp.broadcast_to(order[:, :-1], drafted.tokens.shape)
  return Rest(*found, passed, cache_lib.commit(cache, block, slots, 0), calls,
              rows.astype(jnp.int32))


def give_up(passes, context: Context, state: DecodeState, drafted: Lookahead,
            rows, states) -> Rest:
  """As `proceed`, where the target is not to go on: nothing passes."""
  del passes, context, state, states
  tokens = _padded(drafted.tokens)
  none = jnp.zeros_like(drafted.same)
  return Rest(tokens, jnp.zeros(tokens.shape, jnp.float32), none,
              jnp.zeros_like(rows),
              drafted.target_cache, none, none)


def search_where(rows, passes, gates: Gates, context: Context,
                 options: candidates.Options, state: DecodeState,
                 drafted: Lookahead, rest: Rest, states) -> Found:
  """A search for one token in some rows; if there are none, it costs nothing.

  Args:
    rows: `[B]` bool.
    passes: `reward [B] -> [B]` bool.
    gates: say whether a roll-out that passes is found as well.
    context: holds models and reward.
    options: of the search.
    state: what was committed.
    drafted: its logits follow the text.
    rest: its cache holds the text.
    states: of the reward.

  Returns:
    What was found; nothing in other rows.
  """
  # Not that of `drafted`, which would have to be kept beside it.
  cache = rest.cache.replace(length=state.length)

  def branch():
    roller = options.roller.pick(context, cache, drafted.draft_cache)
    choice = candidates.choose(
        context, options, roller, drafted.logits[:, 0], states,
        jnp.where(rows, state.limit - state.length, 0))
    pick = lambda x: buffers.take_along(
        x, choice.index[:, None, None], axis=1)[:, 0]
    paths, whole = choice.paths, rows & gates.commit_rollout & passes(
        choice.reward)
    tokens, log_probs = pick(paths.tokens), pick(paths.log_probs)
    first = token_buffer.log_probs(drafted.logits[:, 0], choice.token)
    count = jnp.where(
        whole, pick(paths.valid).sum(axis=1, dtype=jnp.int32),
        rows.astype(jnp.int32))
    found = (tokens, log_probs.at[:, 0].set(first), count, paths.calls)
    return (*found, (choice.index, paths.block) if gates.commit_rollout else ())

  *found, winner = _where_any(rows, branch)
  cache = rest.cache
  if gates.commit_rollout:
    index, block = winner
    # In other rows nothing that may yet be committed is overwritten.
    cache = cache.replace(length=state.length + jnp.where(
        rows, 0, options.steps))
    slots = options.num_candidates * jnp.arange(options.steps)[None]
    cache = cache_lib.commit(cache, block, slots + index[:, None], 0)
  return Found(rows, *found, cache)


def merge(drafted: Lookahead, taken, rest: Rest, found: Found):
  """What each row would commit, by the gate that it has come through.

  Args:
    drafted: taken by rows for which nothing else is said.
    num_to_commit: `[B]` int32, how much of it.
    rest: taken by rows where it passed.
    found: taken by rows that needed a search.

  Returns:
    tokens `[B, n + 1]`, the target's own log-probabilities of them, their
    count `[B]`, and tokens of the draft `[B]` that are still right.
  """
  order = jnp.arange(rest.tokens.shape[1])[None]
  here = lambda x: x[:, None]
  tokens = jnp.where(
      order == here(taken),
      buffers.take_along(drafted.following, here(taken), axis=1),
      _padded(drafted.tokens))
  tokens = jnp.where(here(rest.passed), rest.tokens, tokens)
  log_probs = jnp.where(
      here(rest.passed) & (order > here(drafted.same)), rest.log_probs,
      token_buffer.log_probs(drafted.logits, tokens))
  count = jnp.where(rest.passed, rest.count, taken + 1)
  right = jnp.where(rest.passed, drafted.same, taken)
  return (jnp.where(here(found.rows), found.tokens, tokens),
          jnp.where(here(found.rows), found.log_probs, log_probs),
          jnp.where(found.rows, found.count, count),
          jnp.where(found.rows, 0, right))


def settle(state: DecodeState, drafted: Lookahead, found: Found, right, length):
  """Says how much of what the caches hold is committed.

  Args:
    state: before the commit.
    drafted: its draft cache is the one.
    found: its target cache is the one.
    right: `[B]` int32, tokens of the draft that are still right.
    length: `[B]` int32, of the text after the commit, whose newest token is
      to be in no cache.

  Returns:
    The target cache and the draft cache.
  """
  # The draft has not been run on the last token that it drafted.
  right = jnp.minimum(right, drafted.tokens.shape[1] - 1)
  return (found.cache.replace(length=length - 1),
          drafted.draft_cache.replace(
              length=jnp.minimum(state.length + right, length - 1)))


def count(stats: Stats, options: candidates.Options, drafted: Lookahead,
          rest: Rest, found: Found, compared, emitted, runs, at) -> Stats:
  """Adds what an iteration has cost each row that runs.

  Args:
    stats: so far.
    options: of the search.
    drafted: what was drafted.
    rest: what the target went on with.
    found: what was searched for.
    compared: `[B]` int32, rewards that were, to see where it rises.
    emitted: `[B]` int32, committed tokens.
    runs: `[B]` bool.
    at: `[B]` int32, 0..3, the state in which the iteration ended.

  Returns:
    The counts.
  """
  runs, by_draft = runs.astype(jnp.int32), int(options.roller.needs_draft)
  rows = lambda size, x: runs[:, None] * (
      jnp.arange(size)[None] == x[:, None]).astype(jnp.int32)
  # The reward of V is known where it was compared with others.
  tested = ((at < 2) & (drafted.reward_calls == 0)).astype(jnp.int32)
  calls = (tested + drafted.reward_calls + rest.reward_calls +
           (at % 2) * options.num_candidates + compared)
  return Stats(
      stats.target_calls + runs * (
          1 + rest.calls + (1 - by_draft) * found.calls),
      stats.draft_calls + runs * (drafted.calls + by_draft * found.calls),
      stats.emitted + emitted, stats.nodes + runs * drafted.nodes,
      stats.accepted_by_depth + rows(
          stats.accepted_by_depth.shape[1], drafted.same),
      {"states": stats.extra["states"] + rows(STATES, at),
       "reward_calls": stats.extra["reward_calls"] + runs * calls})


def _where_any(rows, branch):
  """The result of a branch; zeros if no row needs it."""
  nothing = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                                 jax.eval_shape(branch))
  return jax.lax.cond(rows.any(), branch, nothing)


def _padded(tokens):
  """`[B, n]` to `[B, n + 1]`."""
  return jnp.pad(tokens, ((0, 0), (0, 1)))


def _fan(width, depth):
  """The most probable first tokens, each with a chain after it."""
  return expanders.top_k((width,) + (1,) * (depth - 1))


def _progress(threshold, maximum, before, after):
  del threshold
  return (after > before) | (after >= maximum)


def _absolute(threshold, maximum, before, after):
  del maximum, before
  return after >= threshold


_TESTS = {"progress": _progress, "absolute": _absolute}
# And whether no more is committed than the reward has risen by.
_TAKEN = {"prefix": (lambda same, size: same, False),
          "rise": (lambda same, size: same, True),
          "full": (lambda same, size: size, False)}
_TREES = {"rsd_s": expanders.top_beam, "rsd_c": _fan}
