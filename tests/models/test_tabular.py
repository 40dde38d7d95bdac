"""The table model: its distributions are the rows of the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.runtime import cache as cache_lib
from models import tabular

TABLE = np.array([[0.0, 1.0, -2.0], [-np.inf, 0.0, 3.0], [1.0, 1.0, -np.inf]],
                 np.float32)


def test_logits_are_rows_of_the_table_and_nothing_is_cached():
  lm, params = tabular.TabularLM(TABLE)
  tokens = jnp.array([[0, 2, 1], [1, 1, 0]])
  cache = lm.init_cache(2, 8)
  block = cache_lib.init_block(cache, 5)
  logits, after = lm.forward(params, tokens, tokens + 7, cache, block, 2,
                             jnp.zeros((2, 3, 5), bool))
  np.testing.assert_array_equal(logits, TABLE[np.asarray(tokens)])
  assert logits.dtype == jnp.float32 and after == block
  assert cache.keys == cache.values == () == block.keys
  assert cache.length.tolist() == [0, 0]
  assert cache_lib.capacity(cache) is None


def test_models_of_a_size_are_equal():
  lm, params = tabular.TabularLM(TABLE)
  other, other_params = tabular.TabularLM(TABLE + 1)
  assert lm == other and hash(lm) == hash(other)
  assert (lm.vocab_size, lm.max_length) == (3, 0)
  assert lm != tabular.TabularLM(np.zeros((2, 2)))[0]
  assert not np.array_equal(params.table, other_params.table)
  # Lists and float64 are taken.
  _, params = tabular.TabularLM([[0, 1], [2, 3]])
  assert params.table.dtype == jnp.float32
  assert jax.tree.leaves(params)[0].shape == (2, 2)


@pytest.mark.parametrize("shape", [(2, 3), (4,), (2, 2, 2)])
def test_tables_are_square(shape):
  with pytest.raises(ValueError, match=r"shape \(.*\[V, V\] is needed"):
    tabular.TabularLM(np.zeros(shape))
