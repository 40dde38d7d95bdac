"""ADED (arXiv 2407.12021): the most probable texts of a table of tri-grams."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"nodes": 5, "depth": 2, "branching": 2, "buckets": 64},
            {"nodes": 5, "depth": 2, "branching": 2, "buckets": 64,
             "simulations": 8, "window": 4})


def make(nodes: int, depth: int, branching: int = 8, buckets: int = 16384,
         simulations: int = 0, window: int = 0) -> Method:
  """Makes ADED: drafts from a table of tri-grams, without a model.

  Args:
    nodes: of a tree, the most probable ones by the scores of the table.
    depth: tokens of a continuation, at most.
    branching: tokens that are kept of what came after a pair, at most V.
    buckets: for pairs of tokens; those that share one are not told apart.
    simulations: of the paper's Monte Carlo tree search, whose most visited
      nodes are drafted; `nodes` or more, there 150. 0: the most probable nodes,
      best first.
    window: tokens, 3 or more, there 16. Each call adds 0.04 to the score of the
      tri-grams of the newest ones, as in the paper. 0: a tri-gram gains 0.2
      once, when it is written.

  Returns:
    The method. `draft_params`, if given, are a table to begin with: tokens
    `[buckets, branching]` int32, -1 for none, and their scores, float32.
  """
  values.check_positives(branching=branching, buckets=buckets, nodes=nodes)
  for name, value, least in (("simulations", simulations, nodes),
                             ("window", window, 3)):
    if value and not (values.is_integer(value) and value >= least):
      raise ValueError(f"{name}={value!r}: 0, or an integer from {least} on, "
                       "is needed.")
  drafter = drafters.aded(nodes, depth, branching, buckets, simulations, window)
  of_paper = "".join(f", {name}={value}" for name, value in (
      ("simulations", simulations), ("window", window)) if value)
  return verifiers.matched(
      f"aded({nodes}, {depth}, {branching}, buckets={buckets}{of_paper})",
      drafter)
