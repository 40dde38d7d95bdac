"""A short name for the bytes of all tokens."""

import hashlib
from collections.abc import Sequence

import numpy as np

from decoding_jax import token_text


def of_pieces(pieces: Sequence[bytes]) -> str:
  """Returns the digest of a vocabulary, 64 hexadecimal digits.

  Names of special tokens count too.
  """
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  found = hashlib.sha256(lengths.tobytes())
  found.update(b"".join(pieces))
  found.update(repr(token_text.special(pieces)).encode())
  return found.hexdigest()
