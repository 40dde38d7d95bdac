"""Times calls, including their computations on the device."""

import time

import jax
from jax import monitoring

from experiments.devices import model_pair

_COMPILING = "/jax/core/compile/"
# Between tracing, lowering and compiling Python works for them, in seconds.
_GAP = 0.1


def timed(function, *args):
  """Returns (result, seconds) of a call, including its computations."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def decoded(decode, *args):
  """Times a call that returns a `dj.Generation`."""
  out, seconds = timed(decode, *args)
  model_pair.check_logits(out)
  return out, seconds


def compiled(decode):
  """Times one call of `decoded`, and apart from it what the call compiles.

  Returns the generation, seconds without compilation, and of compilation.
  """
  spans = []

  def hear(event, duration, **_):
    if event.startswith(_COMPILING):
      end = time.perf_counter()
      start = end - duration
      if spans and start - spans[-1][1] < _GAP:
        start = min(start, spans.pop()[0])
      spans.append((start, end))

  monitoring.register_event_duration_secs_listener(hear)
  try:
    out, seconds = decoded(decode)
  finally:
    monitoring.unregister_event_duration_listener(hear)
  compiling = sum(end - start for start, end in spans)
  return out, seconds - compiling, compiling
