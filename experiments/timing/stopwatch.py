"""Times calls, including their computations on the device."""

import time

import jax

from experiments.devices import model_pair


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
