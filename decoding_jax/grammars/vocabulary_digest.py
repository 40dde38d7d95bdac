"""A short name for the bytes of all tokens."""

import hashlib
from collections.abc import Sequence

import numpy as np

from decoding_jax import token_text


def of_pieces(pieces: Sequence[bytes]) -> str:
  """Returns the digest of a vocabulary, names of special tokens included."""
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  digest = hashlib.sha256(lengths.tobytes())
  digest.update(b"".join(pieces))
  digest.update(repr(token_text.special(pieces)).encode())
  return digest.hexdigest()


def cached(cache: dict, most: int, make, pieces: Sequence[bytes], ends):
  """Returns `make(pieces, ends)`; the last `most` vocabularies are kept."""
  key = of_pieces(pieces), tuple(ends)
  if key not in cache:
    while len(cache) >= most:
      del cache[next(iter(cache))]
    cache[key] = make(pieces, ends)
  return cache[key]
