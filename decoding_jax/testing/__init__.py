"""Checks of methods, drafters and models, for use in tests.

    dj.testing.assert_exact(method)               # a dj.Method or a dj.Pair
    dj.testing.assert_exact(sampler, target=table)
    dj.testing.assert_detects(method, wrong)      # the control beside it
    dj.testing.check_texts(out, prompts, lengths, ...)  # by their own target
    dj.testing.check_drafter(drafter)             # trees, masks, samples
    dj.testing.check_model(target, params)        # caches, masks, positions
"""

import typing

from decoding_jax import lazy

if typing.TYPE_CHECKING:  # What `lazy` imports, for tools that read this.
  from decoding_jax.testing import assertions, conformance, drafter_conformance
  from decoding_jax.testing import enumeration, exactness, generated_texts
  from decoding_jax.testing import rules, tables
  from decoding_jax.testing.assertions import (assert_detects, assert_exact,
                                               check, Report)
  from decoding_jax.testing.conformance import check_model
  from decoding_jax.testing.drafter_conformance import check_drafter
  from decoding_jax.testing.generated_texts import check_texts

__all__ = ["Report", "assert_detects", "assert_exact", "assertions", "check",
           "check_drafter", "check_model", "check_texts", "conformance",
           "drafter_conformance", "enumeration", "exactness", "generated_texts",
           "rules", "tables"]

lazy.attach(globals(), {
    "assertions": ("assert_detects", "assert_exact", "check", "Report"),
    "conformance": ("check_model",), "drafter_conformance": ("check_drafter",),
    "enumeration": (), "exactness": (), "generated_texts": ("check_texts",),
    "rules": (), "tables": ()})
