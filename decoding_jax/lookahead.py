"""Lookaheads: what is drafted, what the target goes on with, what is searched.

Shared by CDLH and CDSL.
"""

from typing import Any, Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import cache as cache_lib, options as options_lib, rewards
from decoding_jax import rollout as rollout_lib
from decoding_jax import text, tree as tree_lib
from decoding_jax.types import Array, Cache, Context, DecodeState


class Search(NamedTuple):
  """How a token is chosen among candidates.

  Attributes:
    num_candidates: K, the most probable tokens.
    steps: n, tokens rolled out behind each.
    weight: of the candidate's log-probability in its score.
    reward_weight: of the reward of the text with candidate and roll-out.
    roller: the model that rolls out.
  """
  num_candidates: int
  steps: int
  weight: float
  reward_weight: float
  roller: rollout_lib.Roller


class Gates(NamedTuple):
  """How CDSL decides what becomes of a lookahead.

  Attributes:
    name: as it stands in that of a method.
    needed: of a lookahead of 0, 1, ..., n tokens, how many must be accepted
      for acceptance to be high.
    low: `proceed` or `give_up`, what is done where it is not.
    late: tokens that the draft cache may lack thereafter, the newest included.
    test: `(threshold, maximum, before, after) -> bool` of rewards.
    threshold: of the test, or None.
    taken: `(accepted, drafted) -> tokens` that are committed of a lookahead.
  """
  name: str
  needed: tuple[int, ...]
  low: Callable[..., Any]
  late: int
  test: Callable[..., Array]
  threshold: float | None
  taken: Callable[..., Array]


@flax.struct.dataclass
class Choice:
  """The best candidate of each row.

  Attributes:
    token: `[B]` int32.
    index: `[B]` int32, which of the paths it is.
    paths: the roll-outs.
  """
  token: Array
  index: Array
  paths: rollout_lib.RollOut


@flax.struct.dataclass
class Lookahead:
  """What was drafted behind the text of each row, and what the target says.

  Attributes:
    tokens: `[B, n]` int32.
    size: `[B]` int32, how many of them there are: a lookahead ends where the
      text does.
    same: `[B]` int32, how many of them the target would have taken as well,
      up to the first that it would not.
    logits: `[B, n + 1, V]` float32, the target's behind the text and behind
      each of the tokens.
    following: `[B, n + 1]` int32, its most probable tokens.
    target_cache: holds the text; behind its length, the tokens.
    draft_cache: the same; it may lack the last token.
    calls: `[B]` int32, forwards of the draft.
  """
  tokens: Array
  size: Array
  same: Array
  logits: Array
  following: Array
  target_cache: Cache
  draft_cache: Cache
  calls: Array


@flax.struct.dataclass
class Rest:
  """A lookahead that the target goes on with, from the first mismatch.

  Attributes:
    tokens: `[B, n + 1]` int32, those that were the same included.
    log_probs: `[B, n + 1]` float32, the target's own, behind the mismatch.
    count: `[B]` int32, how many tokens there are.
    passed: `[B]` bool, whether the reward lets them through.
    cache: the target's; where they passed, it holds them behind its length.
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


def search(num_candidates, lookahead, weight, reward_weight,
           rollout) -> Search:
  """Checks the options of a search.

  Args:
    num_candidates: K.
    lookahead: n.
    weight: 0 or 1.
    reward_weight: a number.
    rollout: "target" or "draft".

  Returns:
    The search.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  tree_lib.check_positive("num_candidates", num_candidates)
  tree_lib.check_positive("lookahead", lookahead)
  options_lib.check_one_of("weight", weight, {0: 0, 1: 1})
  options_lib.check_number("reward_weight", reward_weight)
  roller = options_lib.check_one_of("rollout", rollout, rollout_lib.ROLLERS)
  return Search(int(num_candidates), int(lookahead), int(weight),
                float(reward_weight), roller)


def gates(lookahead, acceptance_threshold, low_acceptance, reward_test,
          reward_threshold, commit) -> Gates:
  """Checks the options of CDSL that are not those of a search.

  Args:
    lookahead: n, a positive integer.
    acceptance_threshold: 0 to 1.
    low_acceptance: "target_rollout" or "cdlh_step".
    reward_test: "progress" or "absolute".
    reward_threshold: None for "progress", a number for "absolute".
    commit: "prefix" or "full".

  Returns:
    The gates.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  options_lib.check_number("acceptance_threshold", acceptance_threshold, 0, 1)
  low, late = options_lib.check_one_of("low_acceptance", low_acceptance, {
      "target_rollout": (proceed, lookahead + 1), "cdlh_step": (give_up, 2)})
  test = options_lib.check_one_of("reward_test", reward_test, _TESTS)
  if test is _progress:
    options_lib.check_one_of("reward_threshold", reward_threshold, {None: None})
  else:
    options_lib.check_number("reward_threshold", reward_threshold)
  taken = options_lib.check_one_of("commit", commit, _TAKEN)
  needed = [sum(same / max(size, 1) < acceptance_threshold
                for same in range(size + 1)) for size in range(lookahead + 1)]
  limit = "" if reward_threshold is None else f" {reward_threshold:g}"
  return Gates(f"tau={acceptance_threshold:g}, low={low_acceptance}, "
               f"test={reward_test}{limit}, commit={commit}", tuple(needed),
               low, int(late), test, reward_threshold, taken)


def describe(options: Search) -> str:
  """The options as they stand in the name of a method."""
  return (f"{options.num_candidates}x{options.steps}, w={options.weight}, "
          f"lambda={options.reward_weight:g}, rollout={options.roller.name}")


def choose(context: Context, options: Search, roller, logits, states,
           room) -> Choice:
  """One token a row by a lookahead from each of its candidates.

  Args:
    context: holds the reward.
    options: the sizes and weights.
    roller: (model, params, cache); the cache holds all that was committed.
    logits: `[B, V]`, the target's behind what was committed.
    states: of the reward, behind what was committed.
    room: `[B]` int32, tokens that may still follow; 0 where no choice is
      needed.

  Returns:
    The candidates with the best scores; of equal ones the more probable, then
    the smaller id.
  """
  logits = rollout_lib.allowed(context, logits)
  # In this order the first of equal scores is the one to take.
  values, candidates = jax.lax.top_k(logits, options.num_candidates)
  paths = rollout_lib.roll_out(
      context, roller, candidates, jnp.minimum(room, 1 + options.steps),
      options.steps)
  log_probs = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  scores = options.weight * log_probs + options.reward_weight * (
      rewards.of_paths(context, states, paths.tokens, paths.valid))
  index = jnp.argmax(jnp.where(values > -jnp.inf, scores, -jnp.inf), axis=-1)
  token = jnp.take_along_axis(candidates, index[:, None], axis=1)[:, 0]
  return Choice(token, index.astype(jnp.int32), paths)


def keep(context: Context, options: Search, state: DecodeState, choice: Choice,
         count):
  """Commits a choice to the caches that hold the whole text.

  Args:
    context: holds the models.
    options: of the choice.
    state: both caches hold the text.
    choice: what follows it.
    count: `[B]` int32, 1 where it counts, else 0.

  Returns:
    The state with its caches, the target's logits `[B, V]` behind the token,
    and the forwards of the target that it took, `[B]`.
  """
  paths, index = choice.paths, choice.index[:, None]
  if options.roller.drafts:
    logits, cache = rollout_lib.extend(
        context.target, context.target_params, state.target_cache,
        choice.token[:, None], count)
    drafted = cache_lib.commit(state.draft_cache, paths.block, index, count)
    state = state.replace(target_cache=cache, draft_cache=drafted)
    return state, logits[:, 0], (~state.done).astype(jnp.int32)
  # The first forward of the roll-out has said it already.
  logits = jnp.take_along_axis(paths.logits, index[..., None], axis=1)[:, 0]
  cache = cache_lib.commit(state.target_cache, paths.block, index, count)
  return state.replace(target_cache=cache), logits, jnp.zeros_like(count)


def chain(steps: int, late: int, context: Context,
          state: DecodeState) -> Lookahead:
  """Drafts tokens greedily and runs the target on them, in one forward.

  Args:
    steps: n, static.
    late: tokens that the draft cache may lack, the newest included; static.
    context: holds the models.
    state: the target cache lacks the newest token.

  Returns:
    The lookahead.
  """
  lacks = state.length - state.draft_cache.length
  columns = state.draft_cache.length[:, None] + jnp.arange(late)
  newest = jnp.take_along_axis(
      state.tokens, jnp.minimum(columns, state.length[:, None] - 1), axis=1)
  logits, draft_cache = rollout_lib.extend(
      context.draft, context.draft_params, state.draft_cache, newest, lacks)
  first = rollout_lib.best(context, jnp.take_along_axis(
      logits, lacks[:, None, None] - 1, axis=1))
  room = jnp.where(state.done, 0, state.limit - state.length)
  path = rollout_lib.roll_out(
      context, (context.draft, context.draft_params, draft_cache), first,
      jnp.minimum(room, steps), max(steps - 1, 1))
  slots = jnp.broadcast_to(jnp.arange(max(steps - 1, 1)),
                           (len(room), max(steps - 1, 1)))
  tokens, valid = path.tokens[:, 0, :steps], path.valid[:, 0, :steps]
  root = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
  logits, target_cache = rollout_lib.extend(
      context.target, context.target_params, state.target_cache,
      jnp.concatenate([root, tokens], axis=1), 1)
  following = rollout_lib.best(context, logits)
  agree = valid & (tokens == following[:, :-1])
  return Lookahead(
      tokens, valid.sum(axis=1), jnp.cumprod(agree, axis=1).sum(axis=1),
      logits, following, target_cache,
      cache_lib.commit(draft_cache, path.block, slots, 0), 1 + path.calls)


def proceed(passes, context: Context, state: DecodeState, drafted: Lookahead,
            rows, states) -> Rest:
  """The target's own lookahead from the mismatch, and what it is worth.

  Args:
    passes: `reward [B] -> [B]` bool.
    context: holds target and reward.
    state: what was committed.
    drafted: what was drafted behind it.
    rows: `[B]` bool, where this is wanted.
    states: of the reward.

  Returns:
    The rest; it passes in none of the other rows.
  """
  same, steps = drafted.same[:, None], drafted.tokens.shape[1]
  order, start = jnp.arange(steps + 1), state.length + drafted.same
  cache = drafted.target_cache
  room = jnp.minimum(steps + 1 - drafted.same, state.limit - start)
  behind = lambda x: jnp.take_along_axis(
      x[:, 0], jnp.maximum(order - same, 0), axis=1)

  def branch():
    path = rollout_lib.roll_out(
        context, (context.target, context.target_params,
                  cache.replace(length=start)),
        jnp.take_along_axis(drafted.following, same, axis=1),
        jnp.where(rows, room, 0), steps)
    tokens = jnp.where(order < same, _padded(drafted.tokens),
                       behind(path.tokens))
    count = drafted.same + path.valid[:, 0].sum(axis=1)
    passed = rows & passes(rewards.worth(context, states, tokens, count))
    return (tokens, behind(path.log_probs), count, passed, path.block,
            path.calls)

  *found, passed, block, calls = _where_any(rows, branch)
  # In other rows nothing that may yet be committed is overwritten.
  cache = cache.replace(length=jnp.where(passed, start, state.length + steps))
  slots = jnp.broadcast_to(order[:-1], drafted.tokens.shape)
  return Rest(*found, passed, cache_lib.commit(cache, block, slots, 0), calls,
              rows.astype(jnp.int32))


def give_up(passes, context: Context, state: DecodeState, drafted: Lookahead,
            rows, states) -> Rest:
  """As `proceed`, where the target is not to go on: nothing passes."""
  del passes, context, state, states
  tokens = _padded(drafted.tokens)
  none = jnp.zeros_like(drafted.same)
  return Rest(tokens, jnp.zeros(tokens.shape), none, jnp.zeros_like(rows),
              drafted.target_cache, none, none)


def search_where(rows, context: Context, options: Search, state: DecodeState,
                 drafted: Lookahead, states):
  """A search for one token in some rows; if there are none, it costs nothing.

  Args:
    rows: `[B]` bool.
    context: holds models and reward.
    options: of the search.
    state: what was committed.
    drafted: its caches hold the text, its logits follow it.
    states: of the reward.

  Returns:
    tokens `[B]` int32, and forwards of the roller `[B]` int32.
  """
  def branch():
    roller = options.roller.pick(context, drafted.target_cache,
                                 drafted.draft_cache)
    choice = choose(context, options, roller, drafted.logits[:, 0], states,
                    jnp.where(rows, state.limit - state.length, 0))
    return choice.token, choice.paths.calls

  return _where_any(rows, branch)


def merge(state: DecodeState, drafted: Lookahead, taken, rest: Rest, searches,
          token):
  """What each row would commit, by the gate that it has come through.

  Args:
    state: what was committed.
    drafted: taken by rows for which nothing else is said.
    taken: `[B]` int32, how much of it.
    rest: taken by rows where it passed.
    searches: `[B]` bool, rows that take a token that was searched for.
    token: `[B]` int32, that token.

  Returns:
    tokens `[B, n + 1]`, the target's own log-probabilities of them, their
    count `[B]`, and tokens of the draft `[B]` that are still right.
  """
  order = jnp.arange(rest.tokens.shape[1])
  here = lambda x: x[:, None]
  tokens = jnp.where(
      order == here(taken),
      jnp.take_along_axis(drafted.following, here(taken), axis=1),
      _padded(drafted.tokens))
  tokens = jnp.where(here(rest.passed), rest.tokens, tokens)
  tokens = jnp.where(here(searches), here(token), tokens)
  log_probs = jnp.where(
      here(rest.passed) & (order > here(drafted.same)), rest.log_probs,
      text.log_probs(drafted.logits, tokens))
  count = jnp.where(rest.passed, rest.count, taken + 1)
  right = jnp.where(rest.passed, drafted.same, taken)
  return (tokens, log_probs, jnp.where(searches, 1, count),
          jnp.where(searches, 0, right))


def _where_any(rows, branch):
  """The result of a branch; zeros if no row needs it."""
  nothing = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                                 jax.eval_shape(branch))
  return jax.lax.cond(rows.any(), branch, nothing)


def _padded(tokens):
  """`[B, n]` to `[B, n + 1]`."""
  return jnp.pad(tokens, ((0, 0), (0, 1)))


def _progress(threshold, maximum, before, after):
  del threshold
  return (after > before) | (after >= maximum)


def _absolute(threshold, maximum, before, after):
  del maximum, before
  return after >= threshold


_TESTS = {"progress": _progress, "absolute": _absolute}
_TAKEN = {"prefix": lambda same, size: same, "full": lambda same, size: size}
