"""PEARL (arXiv 2408.11850): drafting and verification at the same time."""

from decoding_jax.speculation import parallel_chain, rounds
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(depth=3),)


def make(depth: int) -> Method:
  """Makes PEARL: a chain is drafted while the target scores the last one.

  The text has the target's distribution. The latency is simulated: on one
  device the models take turns, and `stats` only count what would overlap.
  Where they do, a round takes max(c D, 1) target calls, c being the cost of a
  draft call: `metrics.parallel_latency`.

  Args:
    depth: D, tokens drafted in a round, at least 2; about 1 / c.

  Returns:
    The method; its `stats.extra` has `post_verify_calls [B]`.

  Raises:
    ValueError: for another depth.
  """
  values.check_positive("depth", depth)
  if depth < 2:
    raise ValueError(f"depth={depth}: at least 2 drafted tokens are needed, "
                     "one of which the next round verifies.")
  return Method(f"pearl({depth})", *rounds.sampled_and_greedy(
      parallel_chain.decoder, depth))
