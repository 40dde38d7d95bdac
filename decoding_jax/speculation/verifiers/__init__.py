"""Verifiers, one rule a file; the files of `RULES` are loaded on first use."""

import typing

from decoding_jax import lazy
from decoding_jax.speculation.verifiers.descent import walk
from decoding_jax.speculation.verifiers.pairing import (LOSSY, RULES, USUAL,
                                                        canonical, matched,
                                                        names, of_name, pair)
from decoding_jax.speculation.verifiers.recursive_rejection import (multi_step,
                                                                    recursive)
from decoding_jax.speculation.verifiers.target_match import (match,
                                                             sample_and_match)

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.speculation.verifiers.sequential_selection import (
      k_seq, k_seq_rho)

__all__ = ["LOSSY", "RULES", "USUAL", "canonical", "k_seq", "k_seq_rho",
           "match", "matched", "multi_step", "names", "of_name", "pair",
           "recursive", "sample_and_match", "walk"]

lazy.attach(globals(), {"sequential_selection": ("k_seq", "k_seq_rho")})
