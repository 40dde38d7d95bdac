"""Which tree to draft: from what is accepted and what forwards cost.

The model of acceptance is that of Sequoia (arXiv 2402.12374, section 3.1): a
sibling is accepted, where those before it were rejected, with a probability
that depends on its rank; here on its depth as well. Plain numpy.
"""

import functools
import itertools
from typing import Any, Callable, NamedTuple

import numpy as np

from decoding_jax.speculation import expanders, verifiers

# The longest stem that is looked at, a path before the first branching.
_STEM = 3


class Acceptance(NamedTuple):
  """What is accepted where; `metrics.acceptance_by_rank` counts it."""
  # `[K]`, of a sibling of each rank, those before it rejected.
  by_rank: np.ndarray
  # `[D]`, how much more than on average is accepted at depth 1, ..., D; the
  # last one holds below.
  hazard: np.ndarray
  # `[D]`, the same exponent for a level of a beam; it grows with the logarithm
  # of its width.
  beam: np.ndarray


class Costs(NamedTuple):
  """Seconds of the parts of a step."""
  target: Callable[[int], float]  # of a target forward, by fresh tokens
  draft: Callable[[int], float]  # of a draft forward, by fresh tokens
  # Of everything else, by levels and by nodes of the tree.
  rest: Callable[[int, int], float]


class Plan(NamedTuple):
  """A method, and what is predicted of it."""
  spec: dict[str, Any]  # name and sizes, as in `decoding_jax.methods`
  tokens: float  # expected tokens of a step
  seconds: float  # of a step
  rate: float  # tokens per second of a row


def expected_tokens(children, accept: Acceptance) -> float:
  """Returns tokens of a step: 1 and the sum of nodes' acceptance probabilities.

  `children` are of each node of level 0, 1, ..., as in `methods.sequoia`.
  """
  reached, total = [1.0], 1.0
  for depth, counts in enumerate(children, 1):
    below = []
    for chance, count in zip(reached, counts):
      for rank in range(count):
        hit = _of_rank(accept, rank, depth)
        below.append(chance * hit)
        chance *= 1 - hit
    reached = below
    total += sum(below)
  return total


def beam_tokens(width: int, depth: int, accept: Acceptance) -> float:
  """Returns what `expected_tokens` does, of a beam of so many a level."""
  chances = [_of_beam(accept, width, level) for level in range(1, depth + 1)]
  return 1 + float(np.cumprod(chances).sum())


def best_trees(accept: Acceptance, nodes: int, depth: int):
  """Returns the trees of most expected tokens (arXiv 2402.12374, 3.1.2).

  Dynamic programming over the nodes of a subtree, the depth of its root and the
  rank of the next sibling. At n - 1 of the list are the `children`, as of
  `methods.sequoia`, of the tree of n nodes, or fewer if more would not help.
  """
  # Tokens that are expected below an accepted node, by the nodes there.
  below, choices = np.zeros(nodes + 1), []
  for level in range(depth, 0, -1):
    chances = [_of_rank(accept, rank, level)
               for rank in range(len(accept.by_rank))]
    rest, taken = np.zeros(nodes + 1), []
    for hit in reversed(chances):
      rest, sizes = _split(hit, 1 + below[:-1], rest)
      taken.append(sizes)
    below = rest
    choices.append(taken[::-1])
  return [_read_tree(choices[::-1], n) for n in range(1, nodes + 1)]


def _split(hit, first, rest):
  """Returns the most that 0, ..., n nodes are worth, and the first one's share.

  Args:
    hit: the probability that the first sibling is accepted.
    first: `[n]`, what a subtree of 1, ..., n nodes is worth if it is.
    rest: `[n + 1]`, what 0, ..., n nodes among the other siblings are worth if
      it is not.
  """
  values, sizes = np.zeros(len(rest)), np.zeros(len(rest), int)
  for n in range(1, len(rest)):
    own = np.arange(1, n + 1)
    worth = hit * first[own - 1] + (1 - hit) * rest[n - own]
    if worth.max() > 0:
      values[n], sizes[n] = worth.max(), own[worth.argmax()]
  return values, sizes


def plans(accepts: dict[str, Acceptance], costs: Costs, nodes=32, depth=8):
  """Returns a `Plan` for all methods with their trees, by falling rate.

  `accepts` has an acceptance for names in `verifiers.RULES`, or for "match", of
  the most probable children, in best-first trees; `nodes` and `depth` are the
  most of a tree.
  """
  found = [_of({"name": "autoregressive"}, 1.0, (), costs)]
  for rule, accept in accepts.items():
    found += (_best_first if rule == "match" else functools.partial(
        _of_rule, rule))(accept, costs, nodes, depth)
  return sorted(found, key=lambda plan: -plan.rate)


def within_budget(found: list[Plan], bytes_of, budget: int,
                  kept: float = 0.95) -> list[Plan]:
  """Chooses the smallest trees that fit and keep most of the speed.

  SpecMemo (arXiv 2506.01986). By falling rate, one plan for each method and
  verification of which a tree fits.

  Args:
    found: of `plans`, by falling rate.
    bytes_of: `(plan) -> bytes` that its run needs.
    budget: bytes that there are.
    kept: share of the rate of the fastest tree that fits, which a smaller one
      must have.
  """
  groups = {}
  for plan in found:
    key = plan.spec["name"], plan.spec.get("verification")
    size = bytes_of(plan)
    if size <= budget:
      groups.setdefault(key, []).append((size, plan))
  chosen = []
  for sized in groups.values():
    least = kept * sized[0][1].rate
    chosen.append(min((x for x in sized if x[1].rate >= least),
                      key=lambda x: x[0])[1])
  return sorted(chosen, key=lambda plan: -plan.rate)


def _of_rule(rule, accept, costs, nodes, depth):
  """Plans of all trees that a rule verifies."""
  plan = lambda name, tree, **sizes: _plan(
      _spec(name, rule, sizes), tree, accept, costs)
  found = []
  # On a chain these are the block verification of "traversal".
  if rule not in ("layer", "conditional_ot"):
    found += [plan("speculative", ((1,),) * d, depth=d)
              for d in range(1, depth + 1)]
  found += [plan("rsd_c", _product(b), branching=b)
            for b in _branchings(nodes, depth)]
  trees = dict.fromkeys(tree for d in range(1, depth + 1)
                        for tree in best_trees(accept, nodes, d))
  found += [plan("sequoia", tree, children=tree)
            for tree in trees if max(map(max, tree)) > 1]
  if rule in verifiers.names(expanders.OF_BEAMS):
    found += [_beam_plan(rule, w, d, accept, costs)
              for d in range(1, depth + 1) for w in range(2, nodes // d + 1)]
  return found


def _spec(name, rule, sizes):
  """A method and its sizes, the usual verification left out."""
  form = {} if rule == verifiers.USUAL else {"verification": rule}
  return {"name": name, **sizes, **form}


def _best_first(accept, costs, nodes, depth):
  """Plans of best-first trees, taken to be as good as the best fixed ones."""
  found = []
  for levels in range(1, depth + 1):
    for size, children in enumerate(best_trees(accept, nodes, levels), 1):
      # The beam is as wide as the widest level that is kept.
      width = max(*map(sum, children), -(-size // levels))
      if levels <= size:
        spec = {"name": "opt_tree", "nodes": size, "width": width,
                "depth": levels}
        found.append(_of(spec, expected_tokens(children, accept),
                         (width,) * levels, costs, size))
  return found


def step_seconds(costs: Costs, level_widths, nodes: int | None = None) -> float:
  """Returns seconds of a step with a tree of such levels; of none without.

  `nodes` are those that the target scores, if not all.
  """
  nodes = sum(level_widths) if nodes is None else nodes
  return (costs.target(1 + nodes)
          + sum(map(costs.draft, draft_tokens(level_widths)))
          + costs.rest(len(level_widths), nodes))


def draft_tokens(level_widths) -> tuple[int, ...]:
  """Returns tokens of a row in each forward of the drafter.

  The deepest level needs no forward; the root's has two tokens.
  """
  return (2, *level_widths[:-1]) if level_widths else ()


def _plan(spec, children, accept, costs):
  return _of(spec, expected_tokens(children, accept),
             tuple(map(sum, children)), costs)


def _beam_plan(rule, width, depth, accept, costs):
  return _of(_spec("rsd_s", rule, {"width": width, "depth": depth}),
             beam_tokens(width, depth, accept), (width,) * depth, costs)


def _of(spec, tokens, level_widths, costs, nodes=None):
  seconds = step_seconds(costs, level_widths, nodes)
  return Plan(spec, tokens, seconds, tokens / seconds)


def _of_rank(accept, rank, depth):
  """Of a sibling, those before it rejected; 0 beyond the ranks known."""
  if rank >= len(accept.by_rank):
    return 0.0
  return 1 - (1 - accept.by_rank[rank])**_last(accept.hazard, depth)


def _of_beam(accept, width, depth):
  """Of any child of the accepted node, in a beam."""
  exponent = _last(accept.hazard, depth) * (
      1 + _last(accept.beam, depth) * np.log(width))
  return 1 - (1 - accept.by_rank[0])**exponent


def _branchings(nodes, depth):
  """Branching vectors of so many nodes, which may begin with a stem.

  After it they do not widen on the way down.
  """
  def extend(vector, width, left):
    if vector:
      yield vector
    if len(vector) < depth:
      for b in range(1, min(vector[-1] if vector else left, left // width) + 1):
        yield from extend((*vector, b), width * b, left - width * b)

  # A chain is no branching.
  wide = [b for b in extend((), 1, nodes) if b[0] > 1]
  return [(1,) * stem + b for stem in range(_STEM + 1) for b in wide
          if len(b) + stem <= depth and stem + _size(b) <= nodes]


def _size(branching):
  return sum(itertools.accumulate(branching, lambda a, b: a * b))


def _product(branching):
  nodes = (1, *itertools.accumulate(branching, lambda a, b: a * b))
  return tuple((b,) * n for b, n in zip(branching, nodes))


def _read_tree(choices, nodes):
  """The children of all nodes, level after level, from what was chosen."""
  children, sizes = [], [nodes]
  for taken in choices:
    counts, below = [], []
    for left in sizes:
      own = []
      for of_rank in taken:
        size = int(of_rank[left])
        if not size:
          break
        own.append(size)
        left -= size
      counts.append(len(own))
      below += [size - 1 for size in own]
    if not below:
      break
    children.append(tuple(counts))
    sizes = below
  return tuple(children)


def _last(values, depth):
  return values[min(depth, len(values)) - 1]
