"""The best acceptance of any rule, for children drawn in a given way.

Whatever a rule does that keeps the target's distribution t, the token that it
emits after a node is one of the node's children with a probability of at most

    min over sets H of tokens of  1 + t(H) - Q(H),

Q(H) being the probability that all children lie in H. For children drawn
independently, without replacement, or greedily but for one, prefixes of the
tokens in the order of t / d suffice, and some rule attains it for that node
(Hu et al. 2025, "Towards optimal multi-draft speculative decoding", arXiv
2502.18779). Plain numpy in float64.
"""

import numpy as np

# Of the tokens that are last by d, with this much of its mass, one is made: a
# bound rises by no more than the probability that one of them is a child.
_SLACK = 1e-3
# Logarithms of the times of an exponential race, over which an integral is
# taken; its error is below 1e-6.
_TIMES = np.arange(-8.0, 21.0, 0.5)


def with_replacement(target, draft, count: int):
  """Bounds the acceptance of children drawn independently."""
  target, draft = _by_ratio(target, draft)
  powers = np.arange(1, count + 1)
  return _least(target, np.cumsum(draft, axis=1)[:, :, None]**powers)


def without_replacement(target, draft, count: int):
  """Bounds the acceptance of children drawn without replacement."""
  target, draft = _by_ratio(target, draft)
  times = np.exp(_TIMES)
  rest = np.cumsum(draft[:, ::-1], axis=1)[:, ::-1]
  rest = np.concatenate([rest[:, 1:], np.zeros((len(draft), 1))], axis=1)
  # The probability that j tokens of a prefix have rung at each time.
  rung = np.zeros((count, len(draft), len(times)))
  rung[0] = 1
  found = np.empty((*draft.shape, count))
  for i in range(draft.shape[1]):
    quiet = np.exp(-draft[:, i, None] * times)
    for j in reversed(range(count)):
      rung[j] *= quiet
      if j:
        rung[j] += (1 - quiet) * rung[j - 1]
    # The density of the first time that a token outside of the prefix rings.
    rate = rest[:, i, None] * times
    weights = rate * np.exp(-rate) * (_TIMES[1] - _TIMES[0])
    fewer = np.cumsum([(weights * x).sum(axis=1) for x in rung], axis=0)
    found[:, i] = (weights.sum(axis=1) - fewer).T
  found[rest == 0] = 1
  return _least(target, found)


def greedy_and_sample(target, draft, count: int):
  """Bounds the acceptance of the most probable tokens and a sample."""
  target, draft = _descending(target, draft)
  found = []
  for fixed in range(count):
    rest = draft.copy()
    rest[:, :fixed] = 0
    mass = rest.sum(axis=1, keepdims=True)
    rest = np.where(mass > 0, rest / np.where(mass > 0, mass, 1), 0)
    found.append(target[:, :fixed].sum(axis=1) +
                 np.minimum(target, rest).sum(axis=1))
  return np.stack(found, axis=1)


def top_k(target, draft, count: int):
  """Returns `[N, K]`, the mass of t on the K most probable tokens of d."""
  target, _ = _descending(target, draft)
  return np.cumsum(target[:, :count], axis=1)


def _descending(target, draft):
  """Sorts tokens by falling probability of the draft, in float64."""
  target, draft = (np.asarray(x, np.float64) for x in (target, draft))
  order = np.argsort(-draft, axis=1, kind="stable")
  return (np.take_along_axis(x, order, axis=1) for x in (target, draft))


def _by_ratio(target, draft):
  """Sorts tokens by t / d, after putting the least probable ones together."""
  target, draft = _descending(target, draft)
  small = (np.cumsum(draft[:, ::-1], axis=1)[:, ::-1] <= _SLACK).all(axis=0)
  kept = int(np.argmax(small)) if small.any() else len(small)
  target, draft = (np.concatenate(
      [x[:, :kept], x[:, kept:].sum(axis=1, keepdims=True)], axis=1)
                   for x in (target, draft))
  ratio = np.full_like(target, np.inf)
  np.divide(target, draft, out=ratio, where=draft > 0)
  order = np.argsort(ratio, axis=1, kind="stable")
  return (np.take_along_axis(x, order, axis=1) for x in (target, draft))


def _least(target, inside):
  """The least of 1 + t(H) - Q(H) over prefixes, the empty one among them."""
  values = 1 + np.cumsum(target, axis=1)[:, :, None] - inside
  return np.minimum(values.min(axis=1), 1)
