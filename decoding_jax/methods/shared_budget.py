"""One node budget for all rows: a tree is as large as its text is easy."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Draws, Method
from decoding_jax.validation import values

# Nodes of a row: eight with the root, in attention hardly slower than four.
_MOST = 7
MATCH = "match"
_DRAWS = Draws.PRUNED, Draws.SHARED_NOISE

EXAMPLES = (dict(nodes=2, width=3, depth=2),
            dict(nodes=0.5, width=1, depth=2, verification="traversal"),
            dict(nodes=1.5, width=3, depth=2, verification="recursive"))


def make(nodes: float, width: int, depth: int, verification: str = MATCH,
         rank_temperature: float = 0.5, most: int | None = None) -> Method:
  """Makes best-first trees or samples that share one budget of nodes.

  A step of B rows scores B roots and the `nodes * B` nodes of all rows that are
  the most likely to be accepted. Rows that are done get none, and what
  is left of the budget goes to the others. A target of `transformer` computes
  its linear layers for these tokens alone; other targets score `most` nodes of
  each row.

  Which nodes a row gets depends on the drafts of the other rows. Its text has
  the target's distribution, independently of the other texts, but above
  temperature 0 it is another sample in another batch; with "shared_gumbel" it
  is the same.

  Several works share nodes among requests, by the draft's probabilities alone:
  TETRIS (arXiv 2502.15197) takes the best tokens of chains and SMART
  (2604.09731) those nodes whose gain is worth their cost; neither is said to
  keep samples exact. D-Cut and the scheduler of DSpark cut each chain where a
  trained confidence falls, by the load of the server; here the number of nodes
  is fixed, so that one program serves all steps, and nothing is trained.

  Args:
    nodes: of a row, on average; may be a fraction.
    width: nodes of a level of the beams; 1 for chains.
    depth: levels of the beams, each a call of the draft model.
    verification: above temperature 0: "match" follows the target's sample
      through the most probable nodes; or a rule of `verifiers.RULES` for a beam
      of which a budget drops nodes. "rheo" is none: its sample is drawn of what
      dropped siblings leave; nor "layer": a level has to be settled before the
      next one is drawn.
    rank_temperature: at which the draft is ranked at temperature 0. The target
      always takes its most probable token, so that it agrees more often than
      the draft's probabilities say.
    most: nodes of a row, under "match" and at temperature 0; None for
      the largest of 7, `depth` and `2 * nodes - 1`.
  """
  values.check_positives(width=width, depth=depth)
  values.check_number("nodes", nodes, 0.01, width * depth)
  values.check_number("rank_temperature", rank_temperature, 0.01, 100)
  if most is None:
    most = min(width * depth, max(_MOST, depth, round(2 * nodes) - 1))
  values.check_positive("most", most)
  values.check_number("most", most, max(nodes, depth), width * depth)
  drafter = lambda draws: drafters.shared(nodes, width, depth, most, draws,
                                          rank_temperature)
  best, name = drafter(Draws.ARBITRARY), f"{nodes:g}, {width}x{depth}"
  if verification == MATCH:
    return verifiers.matched(f"shared_budget({name})", best)
  values.check_one_of("verification", verifiers.canonical(verification),
                      dict.fromkeys([MATCH, *verifiers.names(_DRAWS)]))
  suffix, verifier, draws = verifiers.of_name(verification, _DRAWS)
  return Method(f"shared_budget({name}{suffix or ', recursive'})",
                sampled=verifiers.pair(drafter(draws), verifier),
                greedy=verifiers.pair(best, verifiers.match()))
