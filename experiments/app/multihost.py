"""One program on many machines: who writes, and what happens when one ends.

All processes run the same program on the same arguments, each on its own rows.
The first one alone reads and writes results and prints; what it has read, it
tells the others. So nothing but models and data must be on every machine.
"""

import json
import os
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np

from experiments.app import preemption

# A process that is silent for so long is taken for dead. Most deaths are
# noticed at once, by a connection that breaks.
_HEARTBEAT_SECONDS = 30


def join(coordinator=None, num_processes=None, process_id=None) -> None:
  """Meets the other processes, if there are any, before JAX is used.

  Args:
    coordinator: address and port of the first process; None, as for the other
      two, where JAX finds out itself: TPU pods, GKE, SLURM, Open MPI.
    num_processes: how many they are; 1: there are no others.
    process_id: which of them this is.

  Raises:
    RuntimeError: if they cannot be met.
    ValueError: for arguments that contradict each other.
  """
  if num_processes == 1:
    return
  given = (coordinator, num_processes, process_id)
  if None in given and any(x is not None for x in given):
    raise ValueError(
        "--coordinator, --num_processes and --process_id: all three are "
        "needed, or none where JAX finds the other processes itself.")
  try:
    jax.distributed.initialize(
        *given, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  except ValueError:
    # JAX has found no others.
    if coordinator is not None:
      raise


def first() -> bool:
  """Whether this is the process that reads, writes and prints."""
  return jax.process_index() == 0


def from_first(make, error=()):
  """What the first process has, in all of them.

  Args:
    make: `() -> JSON value`, called by the first process alone.
    error: a kind of exception that all of them raise if the first one does.

  Returns:
    The value.
  """
  if jax.process_count() == 1:
    return make()
  found = None
  if first():
    try:
      found = {"value": make()}
    except error as e:
      found = {"error": str(e)}
  data = np.frombuffer(json.dumps(found).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
  data = data if first() else np.zeros(size, np.uint8)
  found = json.loads(bytes(multihost_utils.broadcast_one_to_all(data)))
  if "error" in found:
    raise error(found["error"])
  return found["value"]


def on_host(tree):
  """Arrays on devices of any process as numpy arrays in all of them.

  Args:
    tree: of arrays.

  Returns:
    The tree.
  """
  if jax.process_count() > 1:
    return multihost_utils.process_allgather(tree, tiled=True)
  return jax.tree.map(np.asarray, tree)


def stop_together() -> None:
  """Raises `preemption.Stopped` in all processes if SIGTERM came to one.

  Each would leave the others waiting if it ended where it stands.
  """
  if jax.process_count() > 1 and multihost_utils.process_allgather(
      np.int32(preemption.stop_requested())).any():
    raise preemption.Stopped


def end(status: int, interrupted: bool = False) -> None:
  """Ends this process.

  Args:
    status: of the process. 0: all others end, too, and the first one is to be
      the last, as they cannot be without it. Else nobody is waited for.
    interrupted: whether a device may be computing still.
  """
  several = jax.distributed.is_initialized()
  # Python would take apart what the threads of a computation still use.
  if not several and not interrupted:
    sys.exit(status)
  if several and not status:
    jax.distributed.shutdown()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)  # pylint: disable=protected-access


def failure(exception: jax.errors.JaxRuntimeError) -> str:
  """One line about an error of a device or of a connection."""
  return (f"process {jax.process_index()} of {jax.process_count()}: another "
          f"process has ended, or a device has failed ({exception}). Finished "
          "results are kept: start all processes again, with the same command.")
