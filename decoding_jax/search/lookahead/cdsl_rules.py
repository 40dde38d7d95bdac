"""Rules of CDSL: when a drafted lookahead is committed, and how much of it.

A reconstruction of the paper's, see `methods.cdsl`.
"""

from typing import Any, Callable, NamedTuple

from decoding_jax.types import Array
from decoding_jax.validation import values


class Rules(NamedTuple):
  """CDSL's rules for a drafted lookahead."""
  # `(max_draft_lag, context, state, reward_states) -> Lookahead`; see
  # `draft_lookahead`.
  draft: Callable[..., Any]
  # Share of the drafted tokens that must be verified for acceptance to be high,
  # 0 to 1.
  acceptance_threshold: float
  # `(maximum, before [B], after [B]) -> [B]` bool, the test of the reward after
  # a lookahead.
  passes: Callable[..., Array]
  # Whether all drafted tokens, and not the verified ones alone, are committed
  # where acceptance is high and the reward passes.
  commits_draft: bool = False
  # What may be committed without a search where acceptance is low (S3); a key
  # of `LOW_ACCEPTANCE`.
  low_acceptance: str = "continue"
  only_if_gain: bool = False  # whether a commit ends where the reward has risen
  # Whether a search commits the roll-out after its token too, where the reward
  # of both passes.
  commits_rollout: bool = False
  max_samples_per_node: int = 1  # draft tokens of one distribution, at most


# S3: whether the target continues, and for verified tokens alone what the
# reward of the whole draft has to say: that it passes, or does not.
LOW_ACCEPTANCE = {"continue": (True, None), "search": (False, None),
                  "prefix": (False, True), "regenerate": (False, False),
                  "confirm": (True, True)}


def make(draft, acceptance_threshold, reward_threshold, **others) -> Rules:
  """Checks the thresholds, and makes rules of them; raises ValueError. A reward
  passes from `reward_threshold` on; None: if it is higher than before, or at
  its maximum."""
  values.check_number("acceptance_threshold", acceptance_threshold, 0, 1)
  if reward_threshold is not None:
    values.check_number("reward_threshold", reward_threshold)
  return Rules(draft, acceptance_threshold,
               rises if reward_threshold is None else (
                   lambda maximum, before, after: after >= reward_threshold),
               **others)


def describe(acceptance_threshold, reward_threshold) -> str:
  """Returns the thresholds as they are written in the name of a method."""
  test = ("progress" if reward_threshold is None else
          f"absolute {reward_threshold:g}")
  return f"tau={acceptance_threshold:g}, test={test}"


def rises(maximum, before, after):
  """Tests whether a reward has risen, or is at its maximum."""
  return (after > before) | (after >= maximum)
