"""A chain copied from the text where it repeats itself, else drafted.

After an earlier occurrence of the last tokens a text often continues as it did
then (SAM decoding, arXiv 2411.10666, section 3.3). The choice depends on the
text alone, and a copied token is a sample of a point mass, so one verifier
serves both.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import best_first, scoring, tree as tree_lib
from decoding_jax.speculation.drafters import language_model, text_matches
from decoding_jax.types import (Array, Context, DecodeState, Drafter, DraftTree,
                                Expander, Head, Seen)
from decoding_jax.validation import values


class _Pending(NamedTuple):
  """Attributes: `[B]` bool, rows that copied; what the model's chain needs."""
  copied: Array
  drafted: Any


@functools.lru_cache(maxsize=None)
def copied_or(expander: Expander, copies: int, min_ngram: int,
              max_ngram: int) -> Drafter:
  """Makes the drafter that copies from the text, else drafts as `of_model`
  does. A step in which every row copies runs no model; one in which none does
  scores as many tokens as `expander` drafts.

  `expander` drafts a chain, or one level of siblings, the first of which copied
  tokens replace. At most `copies` tokens are copied, no fewer than it drafts,
  after `min_ngram` to `max_ngram` equal last tokens. Raises ValueError for
  other sizes.
  """
  depth = tree_lib.depth(expander.layout)
  for name, value, least in (("copies", copies, depth),
                             ("min_ngram", min_ngram, 1),
                             ("max_ngram", max_ngram, min_ngram)):
    values.check_positive(name, value)
    if value < least:
      raise ValueError(f"{name}={value}: {least} or more is needed.")
  width = max(expander.layout.widths)
  if width > 1 and (depth > 1 or copies == 1):
    raise ValueError(f"expander: levels of {expander.layout.widths} nodes and "
                     f"copies={copies}: a chain is needed, or one level and "
                     "two copies or more.")
  layout = tree_lib.product_layout((1,) * copies) if width == 1 else (
      tree_lib.static_layout(((width,), (1,) + (0,) * (width - 1),
                              *((1,),) * (copies - 2))))
  return Drafter(
      layout, language_model.init,
      functools.partial(_propose, expander, copies, min_ngram, max_ngram),
      functools.partial(_observe, depth), calls=depth, draws=expander.draws,
      # Without copies the nodes of the expander are all that there are.
      score=functools.partial(scoring.first_nodes, 1 + tree_lib.num_nodes(
          expander.layout)) if copies > depth else None,
      draft_calls=lambda draft: (
          draft.forwards(depth) if isinstance(draft, Head) else depth))


def _propose(expander, copies, min_ngram, max_ngram, keys, context: Context,
             state: DecodeState) -> tuple[DraftTree, _Pending]:
  matched, spans, there = jax.vmap(lambda text, length: (
      text_matches.occurrences(text, length, 1, max_ngram, copies)))(
          state.tokens, state.length)
  copied = (matched[:, 0] >= min_ngram) & there[:, 0, 0]
  draft = functools.partial(language_model.propose, expander, keys, context)
  nothing = lambda state: jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(draft, state))
  own, pending = jax.lax.cond(copied.all(), nothing, draft, state)
  width = max(expander.layout.widths)
  spread = functools.partial(_spread, width - 1)
  spans, there = jnp.where(there, spans, 0)[:, 0], there[:, 0]
  more = spread(there).shape[1] + 1 - own.tokens.shape[1]
  pad = lambda x: jnp.pad(x[:, 1:], ((0, 0), (0, more)))
  choose = lambda span, x: jnp.where(copied[:, None], spread(span), pad(x))
  tokens = choose(spans, own.tokens)
  tree = best_first.with_root(
      token_buffer.newest(state, 1)[:, 0], tokens, jnp.broadcast_to(
          jnp.asarray(_parents(width, copies))[None], tokens.shape),
      choose(there, own.valid))
  if own.log_probs is None:
    return tree, _Pending(copied, pending)
  # Each node's only child; the last node and the other siblings have none.
  following = jnp.concatenate([spans[:, :1], spread(jnp.roll(
      spans, -1, axis=1))], axis=1)[:, :-1]
  vocabulary = jnp.arange(own.log_probs.shape[-1])[None, None]
  certain = jnp.where(vocabulary == following[:, :, None], 0., -jnp.inf)
  log_probs = jnp.where(
      copied[:, None, None], certain,
      jnp.pad(own.log_probs, ((0, 0), (
          0, following.shape[1] - own.log_probs.shape[1]), (0, 0))))
  return tree.replace(log_probs=log_probs), _Pending(copied, pending)


def _parents(width, copies):
  """Returns parents: siblings' is the root, a copied token's the one before."""
  parents = np.arange(width + copies - 1, dtype=np.int32)
  parents[:width] = 0
  parents[width:width + 1] = 1
  return parents


def _spread(siblings, x):
  """Returns `[B, siblings + copies]` of copies: the first, zeros, the rest."""
  return jnp.concatenate([
      x[:, :1], jnp.zeros((len(x), siblings), x.dtype), x[:, 1:]], axis=1)


def _observe(depth, context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  """Has the model or head read what was committed."""
  if isinstance(context.draft, Head):
    read = lambda seen: language_model.observe(context, before, after,
                                               seen).carry
    return after.replace(carry=jax.lax.cond(
        (seen.count > 1 + depth).any(), read,
        lambda seen: read(_beginning(seen, depth)), seen))
  copied, drafted = seen.pending
  after = language_model.observe(
      context, before, after, _beginning(seen, depth).replace(
          count=jnp.where(copied, 0, seen.count), pending=drafted))
  return after if after.draft_cache is None else after.replace(
      draft_cache=_caught_up(context, after, copied & (seen.count > 0),
                             seen.tokens.shape[1]))


def _beginning(seen: Seen, depth) -> Seen:
  """Returns what was seen of the first nodes of a path."""
  verdict = seen.verdict
  return seen.replace(
      tokens=seen.tokens[:, :depth + 1],
      verdict=verdict.replace(path=verdict.path[:, :depth + 1]))


def _caught_up(context: Context, after: DecodeState, copied, width):
  """The draft model's cache, after the tokens that rows have copied."""
  def read(cache):
    count = jnp.where(copied, after.length - 1 - cache.length, 0)
    # One token more than was committed: the cache may lack it.
    return greedy_rollout.catch_up(
        width + 1, context, after.replace(draft_cache=cache), count)[1]

  return jax.lax.cond(copied.any(), read, lambda cache: cache,
                      after.draft_cache)
