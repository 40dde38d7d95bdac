"""One program on many machines: joining, broadcasting, ending together.

All processes run the same program on the same arguments, each on its own rows.
Only the first one prints, and reads and writes results; it broadcasts what it
has read. So nothing but models and data must be on every machine.
"""

import ctypes
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

from absl import logging
import jax
from jax.experimental import multihost_utils
import numpy as np
import tqdm

from experiments.app import preemption

# A process that is silent for so long is taken for dead. Most deaths are
# noticed at once, by a connection that breaks.
_HEARTBEAT_SECONDS = 30
# Less than a minute, in which all processes must have started.
_JOIN_SECONDS = 50
# An address of IPv6 stands in brackets.
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:\[\]/]+):\d{1,5}")
# `told`: a line about the end of this process has been or is being printed.
_state = {"joined": False, "told": False, "log": ""}


def join(coordinator=None, num_processes=None, process_id=None) -> None:
  """Connects to the other processes, if any; call it before JAX is used.

  If they do not all connect within a minute, or if one dies later, the process
  prints one line and exits with status 1. All arguments are None where JAX
  finds the others itself: TPU pods, GKE, SLURM, Open MPI.
  """
  if coordinator is not None and not _ADDRESS.fullmatch(coordinator):
    raise ValueError(f"--coordinator={coordinator}: address and port of the "
                     "first process are needed, such as 10.0.0.1:1234.")
  if num_processes == 1:
    return
  given = (coordinator, num_processes, process_id)
  if None in given and any(x is not None for x in given):
    raise ValueError(
        "--coordinator, --num_processes and --process_id: all three are "
        "needed, or none where JAX finds the other processes itself.")
  restore = _tell_aborts(*given)
  try:
    jax.distributed.initialize(
        *given, initialization_timeout=_JOIN_SECONDS,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
    _state["joined"] = True
    if not first():
      print(f"Process {jax.process_index()} of {jax.process_count()}: the "
            "first one writes results and prints.", flush=True)
  except ValueError:
    restore()
    # JAX sees no others.
    if coordinator is not None:
      raise


def _tell_aborts(coordinator, num_processes, process_id):
  """Makes one line of the message and stack dump of JAX's runtime.

  It writes to the descriptor of stderr and aborts; no exception is raised. So
  that descriptor becomes a temporary file, Python's stderr a copy of the old
  one, and SIGABRT a line. Returns a function that undoes it.
  """
  if os.name != "posix":
    return lambda: None
  who = "this process" if process_id is None else (
      f"process {process_id} of {num_processes}")
  at = f" at --coordinator={coordinator}" if coordinator else ""

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def tell(_):
    if _state["told"]:
      time.sleep(1)  # The main thread is about to print why it ends.
    else:
      print(f"{pathlib.Path(sys.argv[0]).stem}: error: {who}: " + (
          "another process has ended, or cannot be reached any more. Finished "
          "results are kept: start all processes again, with the same command"
          if _state["joined"] else "not all processes have met"
          f"{at} within {_JOIN_SECONDS} s: start all of them within that time")
            + f" (details: {_state['log']}).", file=sys.stderr, flush=True)
    os._exit(1)  # pylint: disable=protected-access

  stderr, descriptor = sys.stderr, os.dup(2)
  log = tempfile.NamedTemporaryFile(prefix="decoding_jax-", suffix=".log",
                                    delete=False)
  handler = logging.get_absl_handler().python_handler
  _state.update(log=log.name, handler=tell)  # C keeps no reference to it.
  sys.stderr = open(os.dup(2), "w", buffering=1, encoding="utf-8",
                    errors="backslashreplace")
  handler.setStream(sys.stderr)
  os.dup2(log.fileno(), 2)
  libc = ctypes.CDLL(None)
  libc.signal.argtypes, libc.signal.restype = (
      (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p)
  old = libc.signal(signal.SIGABRT, ctypes.cast(tell, ctypes.c_void_p))

  def restore():
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stderr = stderr
    handler.setStream(stderr)
    libc.signal(signal.SIGABRT, old)
    log.close()
    os.unlink(log.name)

  return restore


def first() -> bool:
  """Returns whether this is the process that reads, writes and prints."""
  return jax.process_index() == 0


def progress(total: int, unit: str, **options) -> tqdm.tqdm:
  """Returns a progress bar, which the first process shows."""
  return tqdm.tqdm(total=total, unit=unit, dynamic_ncols=True,
                   disable=not first(), **options)


def from_first(make, error=()):
  """Returns the JSON value that the first process computes, or its `error`."""
  if jax.process_count() == 1:
    return make()
  message = None
  if first():
    try:
      message = {"value": make()}
    except error as e:
      message = {"error": str(e)}
  data = np.frombuffer(json.dumps(message).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
  data = data if first() else np.zeros(size, np.uint8)
  message = json.loads(bytes(multihost_utils.broadcast_one_to_all(data)))
  if "error" in message:
    raise error(message["error"])
  return message["value"]


def on_host(tree):
  """Copies a tree of arrays of any process to the host, in all processes."""
  if jax.process_count() > 1:
    return multihost_utils.process_allgather(tree, tiled=True)
  return jax.tree.map(np.asarray, tree)


def stop_together() -> None:
  """Raises `preemption.Stopped` in all processes if one received SIGTERM."""
  # A process that stopped alone would leave the others waiting.
  if jax.process_count() > 1 and any_stop_requested():
    raise preemption.Stopped


def any_stop_requested(together: bool = True) -> bool:
  """Returns whether a process received SIGTERM, agreed on if `together`."""
  if jax.process_count() == 1:
    return preemption.stop_requested()
  return together and bool(_gathered(preemption.stop_requested()).any())


def check_shared(folder, flag: str) -> None:
  """Makes the folder of a flag; ValueError unless all processes see it."""
  if jax.process_count() == 1:
    return
  folder = pathlib.Path(folder)

  def write():
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".shared-", dir=folder)
    os.close(descriptor)
    return pathlib.Path(name).name

  token = folder / from_first(write)
  seen = _gathered(token.exists())
  if first():
    token.unlink()
  if not seen.all():
    raise ValueError(f"{flag}={folder}: process {int(np.argmin(seen))} does "
                     "not see this folder of process 0: one that all "
                     "processes share is needed.")


def _gathered(value) -> np.ndarray:
  """Returns the values of all processes, `[processes]` int32."""
  return multihost_utils.process_allgather(np.int32(value))


def end(status: int, interrupted: bool = False) -> None:
  """Ends this process; with status 0 it waits for the others.

  They need the first one until then. `interrupted`: a device may be computing.
  """
  several = jax.distributed.is_initialized()
  # Python's own exit frees what threads of a computation still use.
  if not several and not interrupted:
    sys.exit(status)
  if several and not status:
    jax.distributed.shutdown()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)  # pylint: disable=protected-access


def failure(exception: jax.errors.JaxRuntimeError) -> str:
  """Returns one line about an error of a device or of a connection."""
  _state["told"] = True
  return (f"process {jax.process_index()} of {jax.process_count()}: another "
          f"process has ended, or a device has failed ({exception}). Finished "
          "results are kept: start all processes again, with the same command.")
