"""Checks whether texts have the target's distribution, for use in tests.

    dj.testing.assert_exact(method)               # a dj.Method or a dj.Pair
    dj.testing.assert_exact(sampler, target=table)
    dj.testing.assert_detects(method, wrong)      # the control beside it
"""

import typing

from decoding_jax import lazy

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.testing import assertions, enumeration, exactness
  from decoding_jax.testing import rules, tables
  from decoding_jax.testing.assertions import (assert_detects, assert_exact,
                                               check, Report)

__all__ = ["Report", "assert_detects", "assert_exact", "assertions", "check",
           "enumeration", "exactness", "rules", "tables"]

lazy.attach(globals(), {
    "assertions": ("assert_detects", "assert_exact", "check", "Report"),
    "enumeration": (), "exactness": (), "rules": (), "tables": ()})
