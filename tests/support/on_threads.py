"""Threads that generate at once, in one process.

Run by `test_thread_team`: how many threads there are, and how often each of
them generates. Prints whether all texts are those that one thread alone writes.
"""

import concurrent.futures
import dataclasses
import itertools
import sys

import jax
import numpy as np

from decoding_jax import kernels
import decoding_jax as dj
from support import tiny_models as tiny

# Threads share the products of both, and of the draft those of its head alone.
_LARGE = dataclasses.replace(tiny.LLAMA, vocab_size=1000, dim=256, num_layers=4,
                             head_dim=64, hidden_dim=1024, max_length=128)
_SMALL = dataclasses.replace(_LARGE, dim=64, num_layers=1, head_dim=16,
                             hidden_dim=128)
_METHODS = (dj.methods.rsd_s(3, 4), dj.methods.autoregressive(),
            dj.methods.rsd_c((2, 2)), dj.methods.speculative(3))
_ROWS, _LENGTH, _NEW = 4, 16, 40
_PROMPTS = np.random.default_rng(0).integers(
    _LARGE.vocab_size, size=(_ROWS, _LENGTH), dtype=np.int32)


def generate(task):
  """The tokens of a method, by the large or by the small model."""
  method, config = task
  target, draft = tiny.random_model(config), tiny.random_model(_SMALL, seed=4)
  drafts = method is not _METHODS[1]
  return np.asarray(dj.generate(
      jax.random.key(1), _PROMPTS, np.full(_ROWS, _LENGTH, np.int32),
      method=method, target=target.lm, target_params=target.params,
      draft=draft.lm if drafts else None,
      draft_params=draft.params if drafts else None,
      max_new_tokens=_NEW).tokens)


def main(threads, rounds):
  if not kernels.available():
    sys.exit("native kernels are missing")
  tasks = list(itertools.product(_METHODS, (_LARGE, _SMALL)))[:threads]
  expected = [generate(task) for task in tasks]
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for number in range(rounds):
      print(f"round {number}", flush=True)
      for got, tokens in zip(pool.map(generate, tasks), expected):
        np.testing.assert_array_equal(got, tokens)
  print("the same")


if __name__ == "__main__":
  main(*map(int, sys.argv[1:]))
