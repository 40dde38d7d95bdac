"""Random keys that are given: checked, and one for each row."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import random
from decoding_jax.validation import values


def check(key):
  """Returns typed keys, of typed ones or `[..., 2]` uint32; or ValueError."""
  key = values.array("key", key)
  if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    return key
  if key.dtype != jnp.uint32 or not key.ndim:
    raise ValueError(f"key={key}: a random key is needed, such as "
                     "jax.random.key(0).")
  try:
    return jax.random.wrap_key_data(key)
  except (TypeError, ValueError) as e:
    raise ValueError(
        f"key has shape {key.shape} and type uint32: a random key is needed, "
        "such as jax.random.key(0), or its data, such as "
        f"jax.random.PRNGKey(0): {e}") from e


def of_rows(key, batch):
  """Returns `[B]` keys of Threefry: one folded by row numbers, or given."""
  key = check(key)
  if not random.is_threefry(key):
    # In a batch, generators of hardware draw by the key of its first row.
    key = jax.random.wrap_key_data(jax.random.key_data(key)[..., :2],
                                   impl=random.THREEFRY)
  if key.ndim == 0:
    return _fold_in(key, np.arange(batch, dtype=np.uint32))
  if key.shape != (batch,):
    raise ValueError(f"key has shape {key.shape}: one key, or one for each of "
                     f"{batch} rows is needed.")
  return key


@jax.jit
def _fold_in(key, numbers):
  return jax.vmap(random.fold_in, (None, 0))(key, numbers)
