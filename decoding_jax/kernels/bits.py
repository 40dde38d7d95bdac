"""Bits in words of 32; bit b of word w is number `32 w + b`."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import vocabulary

SIZE = 32


def num_words(count: int) -> int:
  return -(-count // SIZE)


def pack(bits, words: int | None = None) -> np.ndarray:
  """Packs bits `[..., n]` on the host into `[..., W]` uint32."""
  words = words or num_words(bits.shape[-1])
  padded = np.zeros((*bits.shape[:-1], words * SIZE), np.uint32)
  padded[..., :bits.shape[-1]] = bits
  padded = padded.reshape(*bits.shape[:-1], words, SIZE)
  return (padded << np.arange(SIZE, dtype=np.uint32)).sum(
      axis=-1, dtype=np.uint32)


def unpack(words, count: int):
  """Returns the first bits `[count]` of words `[W]`, in parts on a mesh."""
  if vocabulary.shards() == 1:
    return _unpack(words, count)

  def part(first, size, words):
    # Parts may begin and end within a word.
    most = num_words(size) + 1
    own = jax.lax.dynamic_slice_in_dim(jnp.pad(words, (0, most)),
                                       first // SIZE, most)
    return jax.lax.dynamic_slice_in_dim(
        _unpack(own, len(own) * SIZE), first % SIZE, size)

  return vocabulary.from_parts(part, count, words)


def _unpack(words, count):
  bits = words[:, None] >> jnp.arange(SIZE, dtype=jnp.uint32)[None]
  return (bits & 1).reshape(-1)[:count] != 0
