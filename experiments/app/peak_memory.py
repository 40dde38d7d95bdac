"""Peak memory of this process since the last reset.

Uses only the standard library, since processes without JAX import it too.
"""

import pathlib

_STATUS = pathlib.Path("/proc/self/status")
_FORGET = pathlib.Path("/proc/self/clear_refs")


def reset() -> bool:
  """Resets the peak to the memory in use; returns False if unsupported."""
  try:
    _FORGET.write_text("5")
    return True
  except OSError:
    return False


def peak() -> int | None:
  """Returns the peak in bytes since a `reset` that returned True, else since
  the process began; None if unsupported.
  """
  try:
    lines = _STATUS.read_text().splitlines()
  except OSError:
    return None
  sizes = dict(line.split(":", 1) for line in lines)
  return int(sizes["VmHWM"].split()[0]) * 1024
