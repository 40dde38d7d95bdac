"""Budget forcing: how long a model thinks before it answers."""

from collections.abc import Sequence
from typing import Optional

import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.types import LogitsProcessor
from decoding_jax.validation import values

# Of a `maximum` that is not given.
_NEVER = np.iinfo(np.int32).max // 2


@programs.memoized
def budget_forcing(end: Sequence[int], *, minimum: int = 0,
                   maximum: Optional[int] = None, wait: Optional[int] = None,
                   eos_id: Optional[int | Sequence[int]] = None
                   ) -> LogitsProcessor:
  """Forbids or forces the end of thinking (s1, arXiv 2501.19393, section 3).

  Thinking goes from the end of the prompt to the last token of `end`. Earlier
  than `minimum` tokens that token is forbidden, and its probability goes to
  `wait`: where the model would stop, it writes "Wait" and thinks on. After
  `maximum` tokens the tokens of `end` follow. The answer is the model's own.

  Args:
    end: tokens that end thinking where they are forced, such as
      "\\n</think>" encoded; the last one ends it wherever it comes.
    minimum: tokens of thinking, at least.
    maximum: tokens of thinking, at most, before `end`; None for any number.
    wait: the token that is written instead of an end; None to think on by what
      else is probable.
    eos_id: tokens that would end the text, forbidden as long as the end of
      thinking is; None without one.

  Returns:
    A processor without parameters, `()`.
  """
  end = values.integers("end", end)
  if not end:
    raise ValueError("end=(): at least one token is needed.")
  for name, x in (("minimum", minimum), ("maximum", maximum)):
    if x is not None and not (values.is_integer(x) and 0 <= x <= _NEVER):
      raise ValueError(f"{name}={x!r}: an integer from 0 to {_NEVER} is "
                       "needed.")
  if maximum is not None and maximum < minimum:
    raise ValueError(f"maximum={maximum}: at least minimum={minimum} is "
                     "needed.")
  if wait is not None and (not values.is_integer(wait) or wait in end[-1:]):
    raise ValueError(f"wait={wait!r}: a token other than the end of thinking, "
                     f"{end[-1]}, is needed, or None.")
  ends = () if eos_id is None else values.integers("eos_id", np.ravel(eos_id))
  last, size = end[-1], len(end)
  forbidden, maximum = (last, *ends), _NEVER if maximum is None else maximum

  def advance(params, state, token):
    del params
    count, closed = state
    return jnp.minimum(count + 1, maximum + size), closed | (token == last)

  def process(params, state, logits):
    del params
    count, closed = state
    _check((*end, *forbidden, *(() if wait is None else (wait,))), logits)
    tokens = jnp.arange(len(logits))
    ends = jnp.isin(tokens, np.array(forbidden))
    longer = jnp.where(ends, -jnp.inf, logits)
    if wait is not None:
      both = jnp.logaddexp(logits[wait], logits[last])
      longer = jnp.where(tokens == wait, both, longer)
    forced = jnp.asarray(end)[jnp.clip(count - maximum, 0, size - 1)]
    limited = jnp.where(count < minimum, longer, logits)
    limited = jnp.where(count >= maximum,
                        jnp.where(tokens == forced, 0., -jnp.inf), limited)
    return jnp.where(closed, logits, limited)

  return LogitsProcessor(init=lambda params: (jnp.int32(0), jnp.bool_(False)),
                         advance=advance, process=process)


def _check(tokens, logits):
  wrong = [x for x in tokens if not 0 <= x < len(logits)]
  if wrong:
    raise ValueError(f"token {wrong[0]} of budget_forcing: 0 to "
                     f"{len(logits) - 1}, tokens of the model, are needed.")
