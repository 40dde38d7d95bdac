"""CDLH and CDSL of one row in plain Python: no cache, no batch, no arrays."""

from typing import Callable, NamedTuple, Optional

import numpy as np


class Row(NamedTuple):
  """A prompt, its limits, the models, and the reward of its texts."""
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


class Rules(NamedTuple):
  """The other options of CDSL; `test` maps rewards before and after to bool."""
  acceptance_threshold: float
  test: Callable
  commit: str = "prefix"
  commit_rollout: bool = False
  low_acceptance: str = "continue"
  width: int = 1
  slack: float = 0.0


def ended(row, text):
  return len(text) == len(row.prompt) + row.new or (
      len(text) > len(row.prompt) and text[-1] == row.eos)


def follow(row, model, text, most):
  """Adds greedy tokens, until the text has ended or grown by `most`."""
  text, most = list(text), len(text) + most
  while len(text) < most and not ended(row, text):
    text.append(int(np.argmax(model(text))))
  return text


def candidate(row, look, text):
  """Returns the token that CDLH chooses, and the text with its roll-out."""
  logits = np.asarray(row.target(text), np.float64)
  log_probs = logits - np.log(np.exp(logits - logits.max()).sum()) - (
      logits.max())
  model = {"target": row.target, "draft": row.draft}[look.rollout]
  scores = []
  for token in sorted(range(len(logits)), key=lambda x: (-logits[x], x)):
    if len(scores) < look.k and logits[token] > -np.inf:
      path = follow(row, model, text + [token], look.n)
      scores.append((look.weight * log_probs[token] +
                     look.reward_weight * row.value(path), token, path))
  best = max(score for score, _, _ in scores)
  return next(result for score, *result in scores if score == best)


def cdlh(row, look):
  text = list(row.prompt)
  while not ended(row, text):
    text.append(candidate(row, look, text)[0])
  return text[len(row.prompt):]


def accepts(row, slack, text, token):
  """Tells whether the target accepts a token after a text."""
  logits = row.target(text)
  return token == int(np.argmax(logits)) or (
      logits[token] > max(logits) - slack)


def drafted_chain(row, look, rules, text):
  """Returns the texts with V and with the whole draft, and its tokens."""
  whole = follow(row, row.draft, text, look.n)
  same = len(text)
  while same < len(whole) and accepts(
      row, rules.slack, whole[:same], whole[same]):
    same += 1
  return whole[:same], whole, len(whole) - len(text)


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  peak = logits.max()
  return logits - peak - np.log(np.exp(logits - peak).sum())


def drafted_tree(row, look, rules, text):
  """Returns the same for a tree, which has no whole draft."""
  beams, verified = [(0.0, text)], [text]
  for _ in range(look.n):
    beams = sorted(
        ((score + x, path + [token]) for score, path in beams
         for token, x in enumerate(log_softmax(row.draft(path)))),
        key=lambda beam: -beam[0])[:rules.width]
    verified += [
        path for score, path in beams if score > -np.inf and
        path[:-1] in verified and not (
            path[:-1] != text and ended(row, path[:-1])) and
        accepts(row, rules.slack, path[:-1], path[-1])]
  longest = [path for path in verified
             if not any(other[:-1] == path for other in verified)]
  best = max(longest, key=lambda path: (
      row.value(path), len(path),
      sum(log_softmax(row.target(path[:i]))[path[i]]
          for i in range(len(text), len(path)))))
  room = len(row.prompt) + row.new - len(text)
  stopped = best != text and best[-1] == row.eos
  return best, None, len(best) - len(text) if stopped else min(look.n, room)


def cdsl(row, look, rules):
  """Returns the text, and of each iteration its state and committed tokens."""
  text, log = list(row.prompt), []
  while not ended(row, text):
    start = len(text)
    draft = drafted_tree if rules.width > 1 else drafted_chain
    agreed, whole, size = draft(row, look, rules, text)
    same = len(agreed) - start
    if same / size >= rules.acceptance_threshold:
      taken = whole if rules.commit == "full" else agreed
      passed = rules.test(row.value(text), row.value(taken))
      state = 0 if passed else 1
      after = follow(row, row.target, taken, 1)
    else:
      after = follow(row, row.target, agreed, look.n + 1 - same)
      drafted = whole and rules.test(row.value(text), row.value(whole))
      passed = {
          "continue": rules.test(row.value(text), row.value(after)),
          "search": False, "prefix": drafted, "regenerate": not drafted,
          "confirm": drafted and row.value(after) >= row.value(whole),
      }[rules.low_acceptance]
      if rules.low_acceptance != "continue":
        after = follow(row, row.target, agreed, 1)
      state = 2 if passed else 3
    if not passed:
      token, path = candidate(row, look, text)
      whole = rules.commit_rollout and rules.test(
          row.value(text), row.value(path))
      after = path if whole else text + [token]
    if rules.commit == "rise" and row.value(after) > row.value(text):
      after = next(after[:i] for i in range(start + 1, len(after) + 1)
                   if row.value(after[:i]) >= row.value(after))
    text = after
    log.append((state, len(text) - start))
  return text[len(row.prompt):], log
