"""Estimates of acceptance from texts of the target, without any drafting.

A rule that draws the target's token and follows the child which it is accepts
along a text what the ranks of its tokens say. So texts that are decoded anyway,
and the distributions of both models along them, tell of trees that were never
run. Plain numpy.
"""

from typing import NamedTuple

import numpy as np

from decoding_jax.speculation import acceptance_bounds
from decoding_jax.speculation import tree_planning

# As many children and levels are distinguished.
_MOST_CHILDREN = 8
_DEPTH = 5
_NONE = 10**6


class Text(NamedTuple):
  """A text of the target, with distributions before each of its tokens.

  Attributes:
    tokens: `[L]` int32, the prompt first.
    start: tokens of the prompt.
    target: `[L - start, V]` float32, of the target, from which they were drawn.
    draft: the same of the draft model; None without one.
  """
  tokens: np.ndarray
  start: int
  target: np.ndarray
  draft: np.ndarray | None


def acceptances(
    texts: list[Text], measured: tree_planning.Acceptance
) -> dict[str, tree_planning.Acceptance]:
  """Returns the acceptance of all ways to verify that may be the fastest.

  Noise that is shared is not: what it is for is a text that does not depend on
  what drafts, and it accepts a little less than recursive rejection.

  Args:
    texts: with draft distributions.
    measured: of recursive rejection, as measured in runs.

  Returns:
    dict as in `tree_planning.plans`. Rules for paths are estimated by what they
    gain on a chain, of which "layer" is taken to have half; greedy drafts by
    the best acceptance at a node.
  """
  ranks = [_ranks(np.log(_positive(text.draft)), _written(text))
           for text in texts]
  found = {"match": _of_ranks(ranks)}
  if all((text.target.max(axis=1) == 1).all() for text in texts):
    return {"recursive": measured, **found}  # Temperature 0.
  hazard = measured.hazard[:_DEPTH]
  gains = _path_gains(texts)[:len(hazard)]
  by_path = measured._replace(hazard=hazard * gains)
  return {"recursive": measured, "traversal": by_path,
          "layer": measured._replace(hazard=hazard * (1 + gains) / 2),
          "conditional_ot": by_path._replace(by_rank=_greedy_ranks(texts)),
          **found}


def lookup_tokens(texts: list[Text], depth: int, max_ngram: int) -> float:
  """Returns the tokens of a step that drafts what followed the last match.

  Args:
    texts: of the target.
    depth: drafted tokens.
    max_ngram: tokens that are compared, at most.

  Returns:
    The accepted ones and the one after them, on average over all positions.
  """
  found = [_copied(list(text.tokens[:place]), text.tokens[place:place + depth],
                   max_ngram) or 0
           for text in texts for place in range(text.start, len(text.tokens))]
  return 1 + float(np.mean(found))


def copied_steps(texts: list[Text], spec: dict,
                 drafted: float) -> tuple[float, float]:
  """Follows texts in steps that copy where the text repeats itself.

  Args:
    texts: of the target.
    spec: sizes of `dj.methods.copy_or_draft`, all of them.
    drafted: tokens of a step that drafts instead.

  Returns:
    The tokens of a step, and the share of steps that copy.
  """
  steps, copied, emitted = 0, 0, 0.0
  for text in texts:
    place = float(text.start)
    while place < len(text.tokens):
      at = int(place)
      found = _copied(list(text.tokens[:at]),
                      text.tokens[at:at + spec["copies"]], spec["max_ngram"],
                      spec["min_ngram"])
      step = drafted if found is None else 1.0 + found
      steps, copied = steps + 1, copied + (found is not None)
      place, emitted = place + step, emitted + step
  return emitted / max(steps, 1), copied / max(steps, 1)


def successor_acceptance(texts: list[Text],
                         branching: int) -> tree_planning.Acceptance:
  """Returns the acceptance of a table of the target's latest successors.

  Args:
    texts: of the target.
    branching: successors that are kept of a token.

  Returns:
    `Acceptance`. Only nodes on the path renew the table here.
  """
  return _of_ranks([_table_ranks(text, branching) for text in texts])


def _of_ranks(ranks):
  return tree_planning.acceptance_of_ranks(ranks, _MOST_CHILDREN, _DEPTH)


def _written(text):
  return text.tokens[text.start:text.start + len(text.target)]


def _positive(probs):
  """Probabilities above 0, whose logarithms are finite."""
  return np.maximum(np.asarray(probs, np.float64), 1e-300)


def _ranks(scores, tokens):
  """Returns `[n]`, how many scores are above that of each token."""
  return (scores > scores[np.arange(len(tokens)), tokens][:, None]).sum(axis=1)


def _path_gains(texts):
  """Returns `[D]`, by which exponents a chain accepts more as a whole.

  Token by token the first j drafts are accepted with the product of the lesser
  of 1 and d / t along a text; as a block of j, with the least product of
  ratios so far (arXiv 2403.10444).
  """
  chains = []
  for text in texts:
    order = np.arange(len(_written(text)))
    target, draft = (_positive(x)[order, _written(text)]
                     for x in (text.target, text.draft))
    logs = np.log(draft) - np.log(target)
    chains += [logs[i:i + _DEPTH] for i in range(len(logs) - _DEPTH + 1)]
  if not chains:
    return np.ones(_DEPTH)
  logs = np.array(chains)
  by_token = np.exp(np.cumsum(np.minimum(logs, 0), axis=1)).mean(axis=0)
  by_path = np.exp(np.minimum(np.minimum.accumulate(
      np.cumsum(logs, axis=1), axis=1), 0)).mean(axis=0)
  rejected = [np.log1p(-np.clip(x / np.append(1, x[:-1]), 1e-6, 1 - 1e-6))
              for x in (by_token, by_path)]
  return np.maximum(rejected[1] / rejected[0], 1)


def _greedy_ranks(texts):
  """Returns `[K]`, what each further child of greedy drafts adds at a node."""
  accepted = np.concatenate([acceptance_bounds.greedy_and_sample(
      text.target, text.draft, _MOST_CHILDREN) for text in texts]).mean(axis=0)
  left = 1 - np.append(0, accepted)
  return np.clip(1 - left[1:] / np.maximum(left[:-1], 1e-6), 1e-3, 1 - 1e-3)


def _copied(before, tokens, max_ngram, min_ngram=1):
  """Returns how many tokens followed the latest longest match; None of none."""
  for size in range(min(max_ngram, len(before) - 1), min_ngram - 1, -1):
    suffix = before[-size:]
    for end in range(len(before) - 1, size - 1, -1):
      if before[end - size:end] == suffix:
        agree = [a == b for a, b in zip(before[end:], tokens)]
        return agree.index(False) if False in agree else len(agree)
  return None


def _table_ranks(text, branching):
  table, found = {}, []
  for place, probs in enumerate(text.target, text.start):
    last = int(text.tokens[place - 1])
    known = table.get(last, [])
    token = int(text.tokens[place])
    found.append(known.index(token) if token in known else _NONE)
    table[last] = np.argsort(-probs, kind="stable")[:branching].tolist()
  return np.array(found, int)
