"""What rules are made of: the most confident positions, and the block."""

import jax.numpy as jnp


def most_confident(confidence, eligible, count):
  """Returns `[L]` bool, the `count` most confident eligible positions.

  Of equal ones the first; fewer where fewer are eligible.
  """
  return eligible & (ranks(confidence, eligible) < count)


def ranks(confidence, eligible):
  """Returns the rank `[L]` of each position, 0 of the most confident one."""
  order = jnp.argsort(jnp.where(eligible, -confidence, jnp.inf), stable=True)
  places = jnp.arange(len(confidence), dtype=jnp.int32)
  return jnp.zeros_like(places).at[order].set(places, unique_indices=True)


def at_least_one(chosen, confidence, eligible):
  """Adds the most confident position to those that a rule has chosen."""
  return chosen & eligible | most_confident(confidence, eligible, 1)
