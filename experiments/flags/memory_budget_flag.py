"""The flag `--memory_budget`: how many bytes a generation may need."""

import math
import re

from absl import flags

from decoding_jax.validation import values
from experiments.app import launch

_BUDGET = flags.DEFINE_string(
    "memory_budget", "", "Bytes that a generation may need on a device, such "
    "as 900MB or 1.5GiB, by which the tree is chosen; '' for no limit.")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10,
          "MIB": 2**20, "GIB": 2**30}


def num_bytes() -> int | None:
  """Returns the value of the flag in bytes; None for no limit."""
  if not _BUDGET.value:
    return None
  found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMG]?I?B?)",
                       _BUDGET.value.strip().upper())
  size = (float(found[1]) * _UNITS[found[2]]
          if found and found[2] in _UNITS else 0)
  if not 1 <= size < math.inf:
    raise launch.UserError(
        f"--memory_budget={values.shortened(_BUDGET.value)}: a positive number "
        "of bytes is needed, with a unit or without: 900MB, 1.5GiB.")
  return int(size)
