"""Rewards of length, weighted sums, and the reward of finished texts."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from decoding_jax import programs
from decoding_jax.types import Generation, Reward


@programs.memoized
def length(minimum: int, maximum: int) -> Reward:
  """Returns a reward of 1 for a length in a range, less outside.

  Its value for n tokens, an end of text included, is min(1, n / minimum,
  maximum / n).

  Args:
    minimum: 0 or more.
    maximum: at least 1, and not less than `minimum`.

  Returns:
    A reward without parameters and constraints.

  Raises:
    ValueError: for a range that is empty.
  """
  if not 0 <= minimum <= maximum or maximum < 1:
    raise ValueError(f"length({minimum}, {maximum}): 0 <= minimum <= maximum "
                     "and maximum >= 1 are needed.")

  def value(params, constraint, state):
    del params, constraint
    short = state / max(1, minimum) if minimum else 1.0
    return jnp.minimum(1.0, jnp.minimum(
        short, maximum / jnp.maximum(1, state))).astype(jnp.float32)

  return Reward(
      init=lambda params, constraint, prompt, length: jnp.int32(0),
      advance=lambda params, constraint, state, tokens, valid: (
          state + valid.sum(dtype=jnp.int32)),
      value=value, maximum=1.0)


@programs.memoized
def weighted_sum(parts: Sequence[tuple[float, Reward]]) -> Reward:
  """Returns the weighted sum of rewards.

  Args:
    parts: (weight, reward).

  Returns:
    A reward; its parameters, constraints and state are tuples of the parts',
    None where a part has none.

  Raises:
    ValueError: without parts, or for a weight that is not finite.
  """
  parts = tuple((float(weight), reward) for weight, reward in parts)
  if not parts or not all(math.isfinite(weight) for weight, _ in parts):
    raise ValueError(
        f"weights {[weight for weight, _ in parts]}: at least one is needed, "
        "and all must be finite.")
  weights, rewards = zip(*parts)
  of_params = functools.partial(_of_parts, "reward_params", len(parts))
  of_constraints = functools.partial(_of_parts, "constraints", len(parts))

  def init(params, constraint, prompt, length):
    return tuple(
        r.init(p, c, prompt, length) for r, p, c
        in zip(rewards, of_params(params), of_constraints(constraint)))

  def advance(params, constraint, state, tokens, valid):
    return tuple(
        r.advance(p, c, s, tokens, valid) for r, p, c, s
        in zip(rewards, of_params(params), of_constraints(constraint), state))

  def value(params, constraint, state):
    # Skip weights of 0: 0 times a reward of -inf would be NaN.
    return sum((
        w * r.value(p, c, s) for w, r, p, c, s
        in zip(weights, rewards, of_params(params), of_constraints(constraint),
               state) if w), jnp.float32(0))

  # Rewards have no known minimum: a negative weight leaves the sum unbounded.
  bounded = all(w == 0 or w > 0 and math.isfinite(r.maximum)
                for w, r in parts)
  maximum = sum(w * r.maximum for w, r in parts if w) if bounded else math.inf
  return Reward(init, advance, value, maximum)


def evaluate(reward: Reward, params, constraints, generation: Generation,
             prompt_lengths):
  """Computes the reward of finished texts, whichever method generated them.

  Args:
    reward: any reward.
    params: its parameters.
    constraints: tree of `[B, ...]`, or None.
    generation: of B prompts.
    prompt_lengths: `[B]`, tokens of each prompt.

  Returns:
    `[B]` float32.
  """
  return _evaluate(reward, params, constraints, generation.tokens,
                   generation.lengths, jnp.asarray(prompt_lengths))


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(reward, params, constraints, tokens, lengths, prompt_lengths):
  def evaluate_row(constraint, tokens, length, prompt_length):
    order = jnp.arange(len(tokens))
    tokens = jnp.maximum(tokens, 0)
    state = reward.init(params, constraint, tokens, prompt_length)
    state = reward.advance(params, constraint, state, tokens,
                           (order >= prompt_length) & (order < length))
    return reward.value(params, constraint, state).astype(jnp.float32)

  return jax.vmap(evaluate_row)(constraints, tokens, lengths, prompt_lengths)


def _of_parts(name, count, given):
  """Returns one value for each part; None for each if nothing is given."""
  if given is None or isinstance(given, tuple) and not given:
    return (None,) * count
  # `zip` would silently leave out the parts without a value.
  if not isinstance(given, (tuple, list)) or len(given) != count:
    raise ValueError(f"{name} of a weighted sum is of type "
                     f"{type(given).__name__}: a tuple of {count} is needed, "
                     "one for each part, None where it has none.")
  return given
