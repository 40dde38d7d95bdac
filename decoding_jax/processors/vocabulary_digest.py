"""A short name for the bytes of all tokens."""

import hashlib
from collections.abc import Sequence

import numpy as np


def of_pieces(pieces: Sequence[bytes]) -> str:
  """Returns the digest of a vocabulary, 64 hexadecimal digits.

  Args:
    pieces: the bytes of V tokens.
  """
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  found = hashlib.sha256(lengths.tobytes())
  found.update(b"".join(pieces))
  return found.hexdigest()
