"""Cores of the machine."""

import os


def cores() -> int:
  """Returns how many this process may use: in a container not all there are."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def is_cpu(device) -> bool:
  """Tells whether a device is a CPU, whose memory is that of its host."""
  return device.platform == "cpu"
