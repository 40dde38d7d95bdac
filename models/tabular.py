"""A table of next-token logits: a model whose distributions are known."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import types


class TabularParams(NamedTuple):
  """Attributes: `table [V, V]`, logits of the next token by the last one."""
  table: types.Array


def TabularLM(table_logits):  # pylint: disable=invalid-name
  """Makes a model whose next token depends on the last token alone.

  `table_logits` is `[V, V]`, row i the logits after token i; -inf is allowed.
  Returns the `LanguageModel` and its parameters. It caches nothing; models of
  the same V are equal, and share compiled programs. Raises ValueError if the
  table is not square.
  """
  table = jnp.asarray(table_logits, jnp.float32)
  if table.ndim != 2 or table.shape[0] != table.shape[1]:
    raise ValueError(f"table_logits has shape {table.shape}: [V, V] is needed.")
  return _language_model(len(table)), TabularParams(table)


@functools.lru_cache(maxsize=None)
def _language_model(vocab_size):
  def abstract_params():
    return TabularParams(jax.ShapeDtypeStruct((vocab_size,) * 2, jnp.float32))

  return types.LanguageModel(_init_cache, _forward, vocab_size,
                             abstract_params=abstract_params, reads_shared=True)


def _init_cache(batch, capacity):
  del capacity
  return types.Cache((), (), jnp.zeros(batch, jnp.int32))


def _forward(params, tokens, positions, cache, block, slot, mask):
  del positions, cache, slot, mask
  return params.table[tokens], block
