"""The most memory that this process has held since it was asked to forget.

Of the standard library alone: processes that never load JAX use it, too.
"""

import pathlib

_STATUS = pathlib.Path("/proc/self/status")
_FORGET = pathlib.Path("/proc/self/clear_refs")


def reset() -> bool:
  """Begins anew at what is held now; False where that cannot be done."""
  try:
    _FORGET.write_text("5")
    return True
  except OSError:
    return False


def peak() -> int | None:
  """Bytes since the last `reset`; None where nobody counts them.

  Where `reset` returned False, they are those since the process began.
  """
  try:
    lines = _STATUS.read_text().splitlines()
  except OSError:
    return None
  sizes = dict(line.split(":", 1) for line in lines)
  return int(sizes["VmHWM"].split()[0]) * 1024
