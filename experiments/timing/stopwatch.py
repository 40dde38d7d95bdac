"""Timed calls, their computations on the device included."""

import time

import jax

from experiments.devices import model_pair


def timed(function, *args):
  """(result, seconds) of a call, its computations included."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def decoded(decode, *args):
  """`timed` of what returns a `dj.Generation`.

  Raises:
    UserError: see `model_pair.check_logits`.
  """
  out, seconds = timed(decode, *args)
  model_pair.check_logits(out)
  return out, seconds
