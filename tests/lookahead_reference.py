"""CDLH and CDSL of one row in plain Python: no cache, no batch, no arrays.

A model is a function from a text, a list of tokens, to logits `[V]`; a reward
one from a text to a number.
"""

from typing import Callable, NamedTuple, Optional

import numpy as np


class Row(NamedTuple):
  """What is decoded, and what it is worth."""
  prompt: list
  new: int
  eos: Optional[int]
  target: Callable
  draft: Callable
  value: Callable


class Look(NamedTuple):
  """Options of a CDLH step."""
  k: int
  n: int
  weight: int = 1
  reward_weight: float = 1.0
  rollout: str = "target"


class Gates(NamedTuple):
  """The other options of CDSL; `test` maps rewards before and after."""
  tau: float
  test: Callable
  low: str = "target_rollout"
  commit: str = "prefix"


def ended(row, text):
  return len(text) == len(row.prompt) + row.new or (
      len(text) > len(row.prompt) and text[-1] == row.eos)


def follow(row, model, text, most):
  """The text with greedy tokens, until it has ended or grown by `most`."""
  text, most = list(text), len(text) + most
  while len(text) < most and not ended(row, text):
    text.append(int(np.argmax(model(text))))
  return text


def candidate(row, look, text):
  """The token that a CDLH step chooses."""
  logits = np.asarray(row.target(text), np.float64)
  log_probs = logits - np.log(np.exp(logits - logits.max()).sum()) - (
      logits.max())
  model = {"target": row.target, "draft": row.draft}[look.rollout]
  scores = []
  for token in sorted(range(len(logits)), key=lambda x: (-logits[x], x)):
    if len(scores) < look.k and logits[token] > -np.inf:
      path = follow(row, model, text + [token], look.n)
      scores.append((look.weight * log_probs[token] +
                     look.reward_weight * row.value(path), token))
  best = max(score for score, _ in scores)
  return next(token for score, token in scores if score == best)


def cdlh(row, look):
  text = list(row.prompt)
  while not ended(row, text):
    text.append(candidate(row, look, text))
  return text[len(row.prompt):]


def cdsl(row, look, gates):
  """The text, and for each iteration its state and the tokens it committed."""
  text, log = list(row.prompt), []
  while not ended(row, text):
    start = len(text)
    drafted = follow(row, row.draft, text, look.n)
    same = start
    while same < len(drafted) and (
        int(np.argmax(row.target(drafted[:same]))) == drafted[same]):
      same += 1
    if (same - start) / (len(drafted) - start) >= gates.tau:
      taken = drafted if gates.commit == "full" else drafted[:same]
      passed = gates.test(row.value(text), row.value(taken))
      state = 0 if passed else 1
      after = follow(row, row.target, taken, 1)
    else:
      after = follow(row, row.target, drafted[:same], look.n + 1 - same + start)
      passed = gates.low == "target_rollout" and (
          gates.test(row.value(text), row.value(after)))
      state = 2 if passed else 3
    text = after if passed else text + [candidate(row, look, text)]
    log.append((state, len(text) - start))
  return text[len(row.prompt):], log
