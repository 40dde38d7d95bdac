"""A short name for the bytes of all tokens."""

import hashlib
from collections.abc import Sequence

import numpy as np

from decoding_jax.processors import special_tokens


def of_pieces(pieces: Sequence[bytes]) -> str:
  """Returns the digest of a vocabulary, 64 hexadecimal digits.

  Args:
    pieces: the bytes of V tokens; names of special tokens count too.
  """
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  found = hashlib.sha256(lengths.tobytes())
  found.update(b"".join(pieces))
  found.update(repr(special_tokens.names(pieces)).encode())
  return found.hexdigest()
