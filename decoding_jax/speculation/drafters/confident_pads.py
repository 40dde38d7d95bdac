"""LUD (arXiv 2405.15208): what a tuned target is sure of at pads is taken.

After the last token of its text the target is given D pads, trained tokens -1,
-2, ...; after the i-th it says what comes i + 1 tokens after the text. The
first guesses, as long as each has enough probability, are the next chain. They
are not tested (`accept_all`): their forward makes their keys and values, the
token after them, and the guesses after that.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, tree as tree_lib
from decoding_jax.types import (Context, DecodeState, Drafter, Draws, NONE,
                                Seen, Verdict, Verifier)


@functools.lru_cache(maxsize=None)
def lud(pads: int, confidence: float) -> Drafter:
  """Makes the drafter; arguments are those of `methods.lud`."""
  return Drafter(tree_lib.free_layout(2 * pads, pads, 1),
                 functools.partial(_init, pads),
                 functools.partial(_propose, pads),
                 functools.partial(_observe, pads, confidence), calls=0)


@functools.lru_cache(maxsize=None)
def accept_all() -> Verifier:
  """Accepts each drafted token: texts have **not** the target's distribution.

  Returns:
    The verifier, for chains of any kind.
  """
  return Verifier(None, frozenset(Draws), _accept)


def _accept(key, layout, tree, logits, warper):
  order = jnp.arange(tree_lib.depth(layout))
  count = tree.valid[1:].sum().astype(jnp.int32)
  token = sampling.draw(key, sampling.log_probs(warper, logits[count]))
  reached = order < count
  return Verdict(jnp.minimum(jnp.arange(len(order) + 1), count), count, token,
                 jnp.where(reached, 0, NONE), reached.astype(jnp.int32))


def _init(pads, context: Context, state: DecodeState):
  """Knows nothing yet: the first step is the root and its pads."""
  del context
  batch = len(state.length)
  return state.replace(carry=(jnp.zeros((batch, pads), jnp.int32),
                              jnp.zeros(batch, jnp.int32)))


def _propose(pads, keys, context: Context, state: DecodeState):
  """The chain of guesses, and pads after the last one that is taken."""
  del keys, context
  guesses, count = state.carry
  order = jnp.broadcast_to(jnp.arange(pads, dtype=jnp.int32), guesses.shape)
  after = jnp.where(order == 0, count[:, None], pads + order)
  return best_first.with_root(
      token_buffer.newest(state, 1)[:, 0],
      jnp.concatenate([guesses, -1 - order], axis=1),
      jnp.concatenate([order, after], axis=1),
      jnp.concatenate([order < count[:, None], order < 0], axis=1)), None


def _observe(pads, confidence, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  """Reads the guesses at the pads, and how many of them are taken."""
  del context
  probs = jax.nn.softmax(seen.logits[:, 1 + pads:].astype(jnp.float32))
  sure = jnp.cumprod(probs.max(axis=-1) >= confidence, axis=1, dtype=jnp.int32)
  found = probs.argmax(axis=-1).astype(jnp.int32), sure.sum(axis=1)
  runs = seen.count > 0
  return after.replace(carry=(
      jnp.where(runs[:, None], found[0], before.carry[0]),
      jnp.where(runs, found[1], before.carry[1])))
