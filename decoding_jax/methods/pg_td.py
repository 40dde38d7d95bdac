"""PG-TD: planning-guided decoding, Monte Carlo tree search over tokens."""

from decoding_jax.search import tree_policy
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_children=2, simulations=4),)


def make(num_children: int = 3, simulations: int = 64,
         exploration: float = 4.0, base: float = 10.0) -> Method:
  """Makes PG-TD (arXiv 2303.05510, algorithm 1), for temperature 0.

  A simulation goes down a tree of tokens, from a node to the child with the
  largest Q + beta p sqrt(log N) / (1 + n), where Q is the best reward through
  the child, p its probability, n how often it was chosen, N the visits of the
  node and beta = log((N + base + 1) / base) + exploration. A new child is
  completed greedily, and the reward of the text goes up the tree. The reward is
  thought to be between 0 and 1, such as the share of tests that a program
  passes; a search ends early where it reaches its maximum.

  The paper completes by beam search; here a beam is one wide. A simulation
  costs a forward for each token that completes the text; where it goes on in
  the way of an earlier one, it costs a single forward (the paper's sequence
  cache; its tree cache, which saves that one too, would keep the keys of all
  texts).

  Args:
    num_children: K, the most probable next tokens.
    simulations: S.
    exploration: c, 0 or more.
    base: c_base, more than 0.

  Returns:
    The method; for its statistics see `tree_policy.decoder`.
  """
  values.check_positives(num_children=num_children, simulations=simulations)
  values.check_number("exploration", exploration, 0.0)
  values.check_number("base", base, 1e-6)
  policy = tree_policy.Policy(int(num_children), int(simulations),
                              float(exploration), float(base))
  return Method(f"pg_td({num_children}, {simulations})", sampled=None,
                greedy=tree_policy.decoder(policy))
