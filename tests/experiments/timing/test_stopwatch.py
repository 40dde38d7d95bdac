"""Times of a generation, and logits that have none."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.timing import stopwatch
from models import tabular


def test_one_call_that_compiles_and_logits_that_are_nan():
  model, params = tabular.TabularLM(np.full((3, 3), np.nan))
  calls = []

  def decode(scale=1.0):
    calls.append(scale)
    time.sleep(0.3)  # Is no compilation.
    return dj.generate(
        jax.random.key(0), np.zeros((1, 1), int), np.ones(1, int),
        method=dj.methods.autoregressive(), target=model, max_new_tokens=2,
        target_params=jax.tree.map(lambda x: jnp.nan_to_num(x) * scale, params))

  jax.clear_caches()  # Another test may have compiled this.
  begin = time.perf_counter()
  out, seconds, compiling = stopwatch.compiled(decode)
  assert out.lengths[0] == 3 and len(calls) == 1 and seconds > 0.3
  assert 0 < compiling <= time.perf_counter() - begin - seconds
  _, seconds, compiling = stopwatch.compiled(decode)
  assert seconds > 0.3 and compiling == 0
  with pytest.raises(launch.UserError, match="logits are NaN"):
    stopwatch.compiled(lambda: decode(np.nan))
