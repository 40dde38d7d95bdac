"""The flag `--compare`: the speed of a completion beside plain decoding."""

import statistics

from absl import flags

from decoding_jax import metrics
from experiments.timing import stopwatch

_COMPARE = flags.DEFINE_bool(
    "compare", False, "Decode the prompt autoregressively as well, in turn "
    "with --method, and print tokens a second of both.")
_ROUNDS = 3


def is_enabled() -> bool:
  """Returns the value of the flag."""
  return _COMPARE.value


def report(name: str, complete, plain) -> str:
  """Times a method and plain decoding, three times in turn.

  Args:
    name: of the method.
    complete: decodes by it, `() -> dj.Generation`.
    plain: the same, autoregressively.

  Returns:
    A line with the medians of both rates, and their ratio.
  """
  decoders = (plain, complete)
  for decode in decoders:
    stopwatch.timed(decode)  # Compiles it, or loads what it needs.
  rounds = [[_rate(decode) for decode in decoders] for _ in range(_ROUNDS)]
  alone, drafted = map(statistics.median, zip(*rounds))
  return (f"autoregressive {alone:.1f} tokens/s, {name} {drafted:.1f} "
          f"tokens/s: {drafted / alone:.2f} times as fast")


def _rate(decode) -> float:
  out, seconds = stopwatch.decoded(decode)
  return metrics.token_rate(out.stats.emitted, [seconds])
