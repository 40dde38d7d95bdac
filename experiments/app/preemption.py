"""SIGTERM, by which machines that are taken away tell it shortly before.

It ends the program where it stands, but for what is held until it is done. One
of several processes goes on until all know, see `multihost.stop_together`.

Python raises nothing while the main thread is within XLA, which may compute for
minutes, or be stuck. So a thread of its own hears SIGTERM as well, and ends the
process if that has not ended a few seconds later.
"""

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import time

import jax

# Seconds after which the process is ended from outside of the main thread.
PATIENCE = 3.0
_MESSAGE = "\nstopped; resume with the same command.\n"
# Whether SIGTERM came, what is being held or deferred, and by what SIGTERM is
# heard.
_state = {"asked": False, "held": 0, "deferred": 0, "heard": None}
# While somebody has it, nothing begins to be held.
_lock = threading.Lock()


class Stopped(BaseException):
  """SIGTERM came; like KeyboardInterrupt, no error."""


def listen() -> None:
  """From now on SIGTERM raises `Stopped`; to be called after `multihost.join`,
  since JAX listens, too.
  """
  forget()
  signal.signal(signal.SIGTERM, _handle)
  signalled, heard = socket.socketpair()
  signalled.setblocking(False)
  # Written to at once, whatever the main thread is doing.
  signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
  _state["heard"] = signalled
  threading.Thread(target=_watch, args=(signalled, heard), daemon=True).start()


def forget() -> None:
  """SIGTERM is no longer listened to, and ends the process at once."""
  told = _state["heard"]
  if told is not None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _state["heard"] = None
    told.close()


def stop_requested() -> bool:
  """Tells whether SIGTERM came."""
  return _state["asked"]


@contextlib.contextmanager
def _until_done(name):
  """Does what is inside to its end before `Stopped` is raised."""
  with _lock:
    _state[name] += 1
  try:
    yield
  finally:
    with _lock:
      _state[name] -= 1
  check()


defer_signals = functools.partial(_until_done, "held")
# If it ends within `PATIENCE`: for what may be lost.
deferred = functools.partial(_until_done, "deferred")


def _handle(*_):
  _state["asked"] = True
  check()


def check() -> None:
  """Raises `Stopped` if SIGTERM came and nothing is held."""
  # Python swallows what a destructor raises, so it may be asked for again.
  if _state["asked"] and not (_state["held"] or _state["deferred"]) and (
      not jax.distributed.is_initialized()):
    raise Stopped


def _watch(signalled, heard):
  """Ends the process some time after SIGTERM, unless `forget` is called."""
  with heard:
    while signal.SIGTERM not in (numbers := heard.recv(64)):
      if not numbers:
        return
  # Those that run together end together, or by their heartbeat.
  if jax.distributed.is_initialized():
    return
  time.sleep(PATIENCE)
  while _state["heard"] is signalled:
    with _lock:
      if not _state["held"] and _state["heard"] is signalled:
        _end()
    time.sleep(0.05)


def _end():
  """Ends a stopped program as `launch.run` does."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
    print(_MESSAGE, end="", file=sys.stderr, flush=True)
  os._exit(0)  # pylint: disable=protected-access
