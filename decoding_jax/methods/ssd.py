"""SSD (arXiv 2603.03251): the next drafts are prepared during a target call."""

import functools

from decoding_jax import sampling
from decoding_jax.speculation import prepared_chains, rounds
from decoding_jax.types import Decoder, Method
from decoding_jax.validation import values

EXAMPLES = (dict(depth=2, guesses=2),)


def make(depth: int, guesses: int = 2) -> Method:
  """Makes speculative speculative decoding, of chains.

  While the target scores a chain, the drafter prepares one for each number of
  accepted tokens and each of the likeliest tokens after them. It gains where
  drafter and target have devices of their own, see `decoding_jax.roles`; in one
  program the models take turns. The text has the target's distribution.

  Of the paper's Saguaro, the fan-out that falls with the number of accepted
  tokens and the sampling that makes outcomes easier to guess are left out.

  Args:
    depth: D, tokens of a chain.
    guesses: K, tokens that are guessed after each of its D + 1 prefixes. The
      drafter runs D + 1 forwards a round, all but one of (D + 1) K tokens.

  Returns:
    The method; its `stats.extra` has `prepared_calls [B]`, target calls whose
    chain had been prepared.

  Raises:
    ValueError: for sizes below 1.
  """
  values.check_positive("depth", depth)
  values.check_positive("guesses", guesses)
  return Method(f"ssd({depth}, {guesses})",
                sampled=_decoder(depth, guesses, greedy=False),
                greedy=_decoder(depth, guesses, greedy=True))


@functools.lru_cache(maxsize=None)
def _decoder(depth, guesses, greedy) -> Decoder:
  if greedy:
    return prepared_chains.decoder(
        depth, guesses,
        lambda key, log_probs: sampling.most_probable(log_probs), rounds.match)
  return prepared_chains.decoder(depth, guesses, sampling.draw, rounds.reject)
