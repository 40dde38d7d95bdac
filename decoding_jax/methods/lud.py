"""LUD (arXiv 2405.15208): tokens that a tuned target is sure of. Lossy.

After the last token of its text the target is given D pads, trained tokens -1,
-2, ...; after the i-th it says what comes i + 1 tokens after the text. The
first guesses, as long as each has enough probability, are the next chain. They
are not tested: their forward makes their keys and values, the token after them,
and the guesses after that.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, tree as tree_lib, verifiers
from decoding_jax.types import Drafter, Method, NONE, Verdict, Verifier
from decoding_jax.validation import values

EXAMPLES = ({"pads": 2, "confidence": 1.0},)


def make(pads: int = 4, confidence: float = 0.9) -> Method:
  """Makes lexical unit decoding: several tokens a call, and **lossy**.

  The target has to know the pads: `transformer.with_prompts`, trained. `ppd`
  verifies what they say, and keeps the distribution. The paper also controls
  repetition, of which we know no more than that: it is left out. For
  temperature 0.

  Args:
    pads: k - 1, tokens that are predicted besides the next one.
    confidence: beta, the least probability of a token that is taken; above 1
      none is, and the text is the target's.

  Raises:
    ValueError: if there is no pad, or the confidence is negative.
  """
  values.check_positive("pads", pads)
  values.check_number("confidence", confidence, 0.0)
  drafter = Drafter(
      tree_lib.free_layout(2 * pads, pads, 1), functools.partial(_init, pads),
      functools.partial(_propose, pads),
      functools.partial(_observe, pads, float(confidence)), calls=0)
  pair = verifiers.pair(drafter, Verifier(None, frozenset(), _accept_all),
                        lossy=True)
  return Method(f"lud({pads}, {confidence:g})", sampled=None, greedy=pair)


def _init(pads, context, state):
  """Knows nothing yet: the first step is the root and its pads."""
  del context
  batch = len(state.length)
  return state.replace(carry=(jnp.zeros((batch, pads), jnp.int32),
                              jnp.zeros(batch, jnp.int32)))


def _propose(pads, keys, context, state):
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


def _accept_all(key, layout, tree, logits, warper):
  order = jnp.arange(tree_lib.depth(layout))
  count = tree.valid[1:].sum().astype(jnp.int32)
  token = sampling.draw(key, sampling.log_probs(warper, logits[count]))
  reached = order < count
  return Verdict(jnp.minimum(jnp.arange(len(order) + 1), count), count, token,
                 jnp.where(reached, 0, NONE), reached.astype(jnp.int32))


def _observe(pads, confidence, context, before, after, seen):
  """Reads the guesses at the pads, and how many of them are taken."""
  del context
  probs = jax.nn.softmax(seen.logits[:, 1 + pads:].astype(jnp.float32))
  sure = jnp.cumprod(probs.max(axis=-1) >= confidence, axis=1, dtype=jnp.int32)
  runs, best = seen.count > 0, probs.argmax(axis=-1).astype(jnp.int32)
  return after.replace(carry=(
      jnp.where(runs[:, None], best, before.carry[0]),
      jnp.where(runs, sure.sum(axis=1, dtype=jnp.int32), before.carry[1])))
