"""Drafts from the text itself: prompt lookup and suffix decoding.

Continuations of the latest occurrences of the last tokens become a tree. Prompt
lookup (arXiv 2304.04487; Saxena 2023) takes the longest match; suffix decoding
(arXiv 2411.04975) keeps nodes that are frequent among the occurrences.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, scoring, tree as tree_lib
from decoding_jax.types import (Array, Context, DecodeState, Drafter, DraftTree,
                                NONE)
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def prompt_lookup(depth: int, num_paths: int, max_ngram: int) -> Drafter:
  """Makes the drafter of the latest continuations of the longest match.
  `draft_params` of `dj.generate` are other texts, as in `suffix`; paths with
  equal prefixes share nodes."""
  return _drafter(depth * num_paths, depth, num_paths, max_ngram, 0.0, None)


@functools.lru_cache(maxsize=None)
def suffix(nodes: int, depth: int, num_paths: int, max_ngram: int,
           min_probability: float, nodes_per_match: float) -> Drafter:
  """Makes the drafter of nodes that are probable by counts of continuations.

  A node's probability is the share of the occurrences that begin with its path.
  Of all lengths of a match that one is taken whose nodes have the greatest sum
  of probabilities.

  `draft_params` of `dj.generate`, if there are any, are `[C]` int32: tokens of
  other texts that are searched as well, `NONE` between two texts. What is not
  in the target's vocabulary counts as `NONE`. Sizes: see `methods.suffix`.
  """
  return _drafter(nodes, depth, num_paths, max_ngram, min_probability,
                  nodes_per_match)


def _others(context: Context):
  """Returns the tokens of other texts `[C]`; None without them."""
  if context.draft_params is None:
    return None
  shapes = [jnp.shape(x) for x in jax.tree.leaves(context.draft_params)]
  if len(shapes) != 1 or len(shapes[0]) != 1:
    raise ValueError(f"draft_params have shapes {shapes}: tokens of other texts"
                     ", of shape [C], or None are needed.")
  return token_buffer.known(*jax.tree.leaves(context.draft_params),
                            context.target.vocab_size)


def _drafter(nodes, depth, num_paths, max_ngram, least, per_match):
  values.check_positives(max_ngram=max_ngram, num_paths=num_paths)
  # `num_paths` continuations have at most this many tokens.
  nodes = min(nodes, depth * num_paths)
  layout = tree_lib.free_layout(nodes, depth, min(nodes, num_paths))
  propose = functools.partial(_propose, layout, num_paths, max_ngram, least,
                              per_match)
  return Drafter(layout, lambda context, state: state, propose,
                 lambda context, before, after, seen: after, calls=0,
                 score=scoring.root_unless_drafted)


def _propose(layout, num_paths, max_ngram, least, per_match, keys,
             context: Context, state: DecodeState) -> tuple[DraftTree, None]:
  del keys
  texts, lengths = state.tokens, state.length
  others = _others(context)
  if others is not None:
    others = jnp.broadcast_to(jnp.append(others, NONE),
                              (len(texts), len(others) + 1))
    texts = jnp.concatenate([others, texts], axis=1)
    lengths = lengths + others.shape[1]
  propose = functools.partial(_of_row, layout, num_paths, max_ngram, least,
                              per_match)
  tokens, parents, valid = jax.vmap(propose)(texts, lengths)
  return best_first.with_root(token_buffer.newest(state, 1)[:, 0], tokens,
                              parents, valid), None


def _of_row(layout, num_paths, max_ngram, least, per_match, text: Array,
            length: Array):
  """Tokens, parents and validity `[N]` of the nodes of one row."""
  matched, paths, alive = occurrences(text, length, num_paths, max_ngram,
                                      layout.depth)
  if per_match is None:
    match, most = matched.max(), layout.nodes
  else:
    matches = jnp.arange(1, max_ngram + 1)
    budgets = jnp.minimum(layout.nodes, (
        per_match * matches.astype(jnp.float32)).astype(jnp.int32))
    sums = jax.vmap(lambda match, most: _best(
        layout, _probability(paths, alive & (matched >= match)[:, None], least)[
            0], most)[1].sum())(matches, budgets)
    match, most = matches[jnp.argmax(sums)], budgets[jnp.argmax(sums)]
  probability, first = _probability(
      paths, alive & (matched >= match)[:, None], least)
  nodes, chosen = _best(layout, probability, most)
  path, level = nodes // layout.depth, nodes % layout.depth
  above = first[path, level - 1] * layout.depth + level - 1
  index = jnp.zeros(paths.size, jnp.int32).at[nodes].set(
      1 + jnp.arange(layout.nodes, dtype=jnp.int32))
  return (paths.reshape(-1)[nodes],
          jnp.where(level == 0, 0, index[above]), chosen > 0)


def occurrences(text, length, count: int, max_ngram: int, depth: int):
  """Returns the latest occurrences of a text's last tokens, longest first. Of
  `text [S]` with `length []` tokens: how many tokens agree, `[R]` int32, 0 for
  no occurrence; what comes after, `[R, D]`; and which of that there is."""
  ends = jnp.arange(len(text))
  back = jnp.arange(max_ngram)[None]
  last = text[jnp.maximum(length - 1 - back, 0)]
  here = text[jnp.maximum(ends[:, None] - back, 0)]
  agree = (here == last) & (ends[:, None] >= back) & (length > back) & (
      here != NONE)
  run = jnp.cumprod(agree, axis=1, dtype=jnp.int32).sum(axis=1)
  run = jnp.where(ends < length - 1, run, 0)
  # A longer match counts more than a later one.
  _, best = jax.lax.top_k(run * len(text) + jnp.where(run > 0, ends, 0),
                          min(count, len(text)))
  best = jnp.resize(best, count)
  after = best[:, None] + 1 + jnp.arange(depth)[None]
  paths = text[jnp.minimum(after, len(text) - 1)]
  matched = jnp.where(jnp.arange(count) < len(text), run[best], 0)
  alive = (after < length) & (paths != NONE) & (matched > 0)[:, None]
  return matched, jnp.maximum(paths, 0), jnp.cumprod(alive, 1).astype(bool)


def _probability(paths, alive, least):
  """Returns shares `[R, D]` of the paths that go through each node. They are 0
  below `least`, and of all but the first path through a node, which is the
  second result `[R, D]`. `alive [R, D]` says which tokens count."""
  equal = (paths[:, None] == paths[None]) & alive[:, None] & alive[None]
  through = jnp.cumprod(equal, axis=-1).astype(bool)
  first = jnp.argmax(through, axis=1)
  number = jnp.maximum(alive[:, 0].sum(dtype=jnp.float32), 1)
  share = through.sum(axis=1, dtype=jnp.float32) / number
  counts = alive & (first == jnp.arange(len(paths))[:, None]) & (share >= least)
  return jnp.where(counts, share, 0.0), first


def _best(layout, probability, most):
  """The N most probable nodes `[N]`, parents first, and their probabilities. A
  child is never more probable than its parent. The probability is 0 of those
  that are more than `most`, and where there are fewer."""
  deeper = jnp.broadcast_to(jnp.arange(layout.depth, dtype=jnp.float32),
                            probability.shape)
  # Of equally probable nodes a parent comes before its child.
  _, nodes = jax.lax.top_k((probability - 1e-6 * deeper).reshape(-1),
                           layout.nodes)
  kept = jnp.arange(layout.nodes) < most
  return nodes, jnp.where(kept, probability.reshape(-1)[nodes], 0.0)
