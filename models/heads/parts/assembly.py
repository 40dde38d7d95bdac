"""Puts heads together from functions of their architecture and target."""

import functools
from typing import Any, NamedTuple

import jax

from decoding_jax.types import Head


class Spec(NamedTuple):
  """Attributes: `config` of the head, and the `target`'s architecture."""
  config: Any
  target: Any


def head(spec, functions, init, forwards, *, num_features: int = 1,
         depth: int = 0, max_length: int = 0) -> Head:
  """Returns a head on a target that keeps outputs of its width.

  Args:
    spec: a `Spec`, or what has a `target` too.
    functions: `init`, `read`, `start` and `logits` of a `Head`, each with
      `spec` before its arguments.
    init: `(key) -> params`.
    forwards: of the `Head`.
    num_features: layers of the target that it reads.
    depth: of the `Head`.
    max_length: of the `Head`.
  """
  target = spec.target
  return Head(
      *(functools.partial(function, spec) for function in functions),
      target.vocab_size, (target.dim,) * num_features, forwards, depth=depth,
      max_length=max_length,
      abstract_params=lambda: jax.eval_shape(init, jax.random.key(0)))
