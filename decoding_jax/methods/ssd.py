"""SSD (arXiv 2603.03251): the next drafts are prepared during a target call."""

from decoding_jax.speculation import prepared_chains, rounds
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(depth=2, guesses=2), dict(depth=2, guesses=(3, 1, 2)))


def make(depth: int, guesses: int | tuple[int, ...] = 2) -> Method:
  """Makes speculative speculative decoding, of chains.

  While the target scores a chain, the drafter prepares one for each number of
  accepted tokens and each of the likeliest tokens after them. It gains where
  drafter and target have devices of their own, see `decoding_jax.roles`; in one
  program the models take turns. The text has the target's distribution.

  Of the paper's Saguaro, the sampling that makes outcomes easier to guess is
  left out.

  Args:
    depth: D, tokens of a chain.
    guesses: tokens that are guessed after each of its D + 1 prefixes, or
      D + 1 numbers: Saguaro's fall by a factor from 0 accepted tokens to D - 1,
      and there are more where all D are accepted. The drafter runs D + 1
      forwards a round, all but one of as many tokens as guesses together.

  Returns:
    The method; its `stats.extra` has `prepared_calls [B]`, target calls whose
    chain had been prepared.

  Raises:
    ValueError: for sizes below 1, or another number of guesses.
  """
  values.check_positive("depth", depth)
  name, numbers = f"ssd({depth}, {guesses})", (guesses,) * (depth + 1)
  if not values.is_integer(guesses):
    numbers = values.integers("guesses", guesses)
    name = f"ssd({depth}, {'-'.join(map(str, numbers))})"
  values.check_positive("guesses", *numbers)
  if len(numbers) != depth + 1:
    raise ValueError(f"guesses={guesses}: one number, or depth + 1 = "
                     f"{depth + 1} of them are needed.")
  return Method(name, *rounds.sampled_and_greedy(prepared_chains.decoder,
                                                 numbers))
