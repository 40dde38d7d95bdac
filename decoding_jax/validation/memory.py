"""Memory that a call needs at least, and that the devices have."""

import contextlib
import contextvars
import os
import pathlib

import jax
import numpy as np

from decoding_jax import kernels

_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_GIB = 2**30
# What `of_absent` says: bytes or None, in a tuple; () for devices of this host.
_ABSENT = contextvars.ContextVar("bytes of absent devices", default=())


class TooLittle(ValueError):
  """A call needs more memory than there is."""


@contextlib.contextmanager
def of_absent(size: int | None):
  """Has `check` ask devices that are not here, of `size` bytes or None."""
  token = _ABSENT.set((size,))
  try:
    yield
  finally:
    _ABSENT.reset(token)


def check(devices, **parts: int):
  """Raises TooLittle if devices together lack the bytes of named parts."""
  need = sum(parts.values())
  there, = _ABSENT.get() or (device_memory(devices),)
  if there is not None and need > there:
    each = ", ".join(f"{name} {part / _GIB:.2f}"
                     for name, part in parts.items())
    raise TooLittle(
        f"a call needs at least {need / _GIB:.2f} GiB ({each}), and there are "
        f"{there / _GIB:.2f} GiB: a smaller max_new_tokens, fewer or shorter "
        "prompts, or fewer rows at a time are needed.")


def devices_of(*arrays) -> set:
  """Returns the devices of arrays; all of them where some are traced."""
  devices = set()
  for x in jax.tree.leaves(arrays):
    if isinstance(x, jax.core.Tracer):
      return set(jax.devices())
    if isinstance(x, jax.Array):
      devices |= x.sharding.device_set
  return devices or {jax.devices()[0]}


def size(arrays) -> int:
  """Returns the bytes of a tree of arrays, or of their shapes."""
  return sum(x.size * np.dtype(x.dtype).itemsize
             for x in jax.tree.leaves(arrays) if hasattr(x, "dtype") and
             not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def distinct(arrays) -> list:
  """Returns the arrays of a tree, those once that several models share."""
  return [*{id(x): x for x in jax.tree.leaves(arrays)}.values()]


def device_memory(devices) -> int | None:
  """Returns the bytes that devices have for arrays; None if unknown."""
  total, hosts = 0, set()
  for device in devices:
    limit = ((device.memory_stats() or {}).get("bytes_limit")
             if device.process_index == jax.process_index() else None)
    if limit is not None:
      total += limit
    elif kernels.is_cpu(device):
      hosts.add(device.process_index)  # Its devices share the memory.
    else:
      return None
  # Other hosts are taken to be like this one.
  return total + len(hosts) * host_memory()


def host_memory(root=_CGROUPS, groups="/proc/self/cgroup") -> int:
  """Returns the bytes of this machine's memory that this process may use.
  Control groups are mounted at `root`; the file `groups` names this
  process's."""
  sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
  files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
  try:
    # Lines such as "0::/user/run": groups of version 2, each within the other.
    own = pathlib.PurePath(pathlib.Path(groups).read_text().rpartition(":")[2]
                           .strip().lstrip("/"))
    files += [root / group / "memory.max" for group in (own, *own.parents)]
  except OSError:
    pass  # Without control groups, or not on Linux.
  for path in files:
    text = path.read_text().strip() if path.is_file() else "max"
    if text.isdigit():
      sizes.append(int(text))
  return min(sizes)
