"""Trees of several drafters as one: which nodes are one, and exactness."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import (
    drafters, expanders, tree as tree_lib, verifiers)
from decoding_jax.speculation.drafters import union_of_trees
from decoding_jax.testing import exactness
from decoding_jax.types import NONE
from support import head_states, helpers, small_heads, tiny_models as tiny

V, ROWS, LENGTH = 5, 20_000, 4
PATHS = drafters.of_model(expanders.iid_paths(2, 2))
TABLE = drafters.token_recycling((2, 2), 2)
LOOKUP = drafters.prompt_lookup(3, 1, 2)


def method(*parts):
  return verifiers.matched("merged", drafters.merged(*parts))


def texts(tokens, parents, valid):
  """The text of each valid node of a row, the root's being empty."""
  results = [()]
  for token, parent in zip(tokens[1:], parents[1:]):
    results.append((*results[max(parent, 0)], int(token)))
  return [text if ok else None for text, ok in zip(results, valid)]


@functools.lru_cache(maxsize=None)
def random_trees():
  """Trees of two levels with many twins, some not valid, of 200 rows."""
  rng, values = np.random.default_rng(0), []
  for layout in ((2, 3), (1, 4)):
    starts = np.cumsum([0, 1, *layout])
    tokens = rng.integers(0, 3, (200, starts[-1]))
    tokens[:, 0] = 0
    parents = [[NONE], *(rng.integers(starts[i], starts[i + 1],
                                      (200, layout[i])).tolist()
                         for i in range(2))]
    parents = np.concatenate(
        [np.full((200, 1), NONE), *map(np.array, parents[1:])], axis=1)
    valid = rng.random(tokens.shape) < 0.8
    values.append(tree_lib.from_parents(*(
        jnp.asarray(x, dtype) for x, dtype in (
            (tokens, jnp.int32), (parents, jnp.int32), (valid, bool)))))
  return values


def test_the_union_has_each_text_once():
  parts = random_trees()
  union, first = jax.tree.map(np.asarray, jax.jit(union_of_trees.join)(parts))
  own = [jax.tree.map(np.asarray, tree) for tree in parts]
  twins = 0
  for row in range(len(union.tokens)):
    expected = [text for tree in own for text in texts(
        tree.tokens[row], tree.parents[row], tree.valid[row])]
    actual = texts(union.tokens[row], union.parents[row], union.valid[row])
    kept = [text for text in actual if text is not None]
    assert len(kept) == len(set(kept))
    assert set(kept) == set(expected) - {None}
    twins += len(kept) < len(expected)
    # Each node has the text of the first node that is tested in its place.
    nodes = expected[:own[0].tokens.shape[1]] + expected[
        own[0].tokens.shape[1] + 1:]
    for node, text in enumerate(nodes):
      if text is not None:
        assert actual[first[row, node]] == text
    for node, text in enumerate(actual):
      if text is not None:
        assert union.mask[row, node].sum() == 1 + len(text)
  assert twins


def test_joint_distribution():
  parts = PATHS, TABLE
  dj.testing.assert_exact(method(*parts), *exactness.random_tables(V),
                          rows=ROWS, length=LENGTH)
  first = lambda uniforms, target, draft, tokens, valid: (
      jnp.where(valid[0], 0, NONE).astype(jnp.int32), target)
  wrong = dj.Pair(drafters.merged(*parts), dj.Verifier(
      first, frozenset(dj.Draws)))
  helpers.check_wrong(wrong, V, ROWS, LENGTH)


def test_the_draft_model_reads_what_others_have_drafted():
  """The target drafts for itself beside a table: its chain is always right."""
  models = tiny.opt_models()
  same = tiny.Models(models.target, models.target)
  chain = drafters.of_model(expanders.top_k((1, 1)))
  plain, ours = (tiny.generate(x, same, sampling=dj.Sampling(0.0)) for x in (
      dj.methods.autoregressive(), method(TABLE, chain)))
  np.testing.assert_array_equal(plain.tokens, ours.tokens)
  assert (ours.stats.target_calls == -(-tiny.NEW // 3)).all()
  assert (ours.stats.draft_calls == 3 * ours.stats.target_calls).all()


def test_a_table_learns_the_same_beside_another_drafter():
  """At temperature 0: as many calls as alone beside a useless drafter."""
  table = np.roll(np.eye(V), 1, axis=1) * 0.9 + 0.02
  counts = []
  for parts in ((TABLE,), (LOOKUP, TABLE)):
    drafter = parts[0] if len(parts) == 1 else drafters.merged(*parts)
    lm, params = exactness.table_model(table)
    out = dj.generate(
        jax.random.key(0), np.zeros((1, 1), np.int32), np.ones(1, np.int32),
        method=dj.Method("x", None, dj.pair(drafter, verifiers.match())),
        target=lm, target_params=params, max_new_tokens=3 * V,
        sampling=dj.Sampling(0.0))
    counts.append((out.tokens.tolist(), int(out.stats.target_calls[0])))
  assert counts[0][0] == counts[1][0]
  assert counts[1][1] <= counts[0][1] < 3 * V


def test_a_head_reads_what_others_have_drafted():
  """Beside a table: its state is that of the committed text, read at once."""
  chain = drafters.of_model(expanders.top_k((1, 1)))
  context, [*_, (state, _)] = head_states.stepped(
      small_heads.models("mtp"), method(TABLE, chain).sampled, 4)
  np.testing.assert_array_equal(state.stats.draft_calls, 8)
  head_states.check(context, state, state.carry[1])


def test_what_cannot_be_merged():
  with pytest.raises(ValueError, match="1 drafters: two or more are needed"):
    drafters.merged(TABLE)
  with pytest.raises(ValueError, match="drafter"):
    drafters.merged(TABLE, None)
  carrying = PATHS._replace(init=lambda context, state: state.replace(
      carry=jnp.zeros(len(state.length))))
  target, draft = exactness.random_tables(V)
  with pytest.raises(ValueError, match="carries more than the cache"):
    dj.testing.check(method(carrying, TABLE), target, draft, rows=2)
  lm, params = exactness.table_model(target)
  with pytest.raises(ValueError, match="None or a tuple of 2, one for each"):
    dj.generate(jax.random.key(0), np.zeros((1, 1), np.int32),
                np.ones(1, np.int32), method=method(TABLE, LOOKUP), target=lm,
                target_params=params, draft_params=np.zeros((V, 2), np.int32),
                max_new_tokens=2)
