"""The flag `--compare`: the speed of a completion beside plain decoding."""

import statistics

from absl import flags
import tqdm

from decoding_jax import metrics
from experiments.app import multihost
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
  with tqdm.tqdm(total=len(decoders) * (1 + _ROUNDS), unit="run", leave=False,
                 desc="compiling plain decoding", dynamic_ncols=True,
                 disable=not multihost.first()) as bar:
    for decode in decoders:
      stopwatch.timed(decode)  # Compiles it, or loads what it needs.
      bar.update()
    bar.set_description("comparing with plain decoding")
    rounds = [[_rate(decode, bar) for decode in decoders]
              for _ in range(_ROUNDS)]
  alone, drafted = map(statistics.median, zip(*rounds))
  return (f"autoregressive {alone:.1f} tokens/s, {name} {drafted:.1f} "
          f"tokens/s: {drafted / alone:.2f} times as fast")


def _rate(decode, bar) -> float:
  out, seconds = stopwatch.decoded(decode)
  bar.update()
  return metrics.token_rate(out.stats.emitted, [seconds])
