"""SIGTERM, by which machines that are taken away tell it shortly before.

It ends the program where it stands, but for what is held until it is done. One
of several processes goes on until all know, see `multihost.stop_together`.
"""

import contextlib
import signal

import jax

_state = {"asked": False, "held": 0}


class Stopped(BaseException):
  """SIGTERM came; like KeyboardInterrupt, no error."""


def listen() -> None:
  """From now on SIGTERM raises `Stopped`; to be called after `multihost.join`,
  since JAX listens, too.
  """
  signal.signal(signal.SIGTERM, _handle)


def stop_requested() -> bool:
  """Whether SIGTERM came."""
  return _state["asked"]


@contextlib.contextmanager
def defer_signals():
  """What is inside is done to its end before `Stopped` is raised."""
  _state["held"] += 1
  try:
    yield
  finally:
    _state["held"] -= 1
  check()


def _handle(signum, frame):
  del signum, frame
  _state["asked"] = True
  check()


def check() -> None:
  """Raises `Stopped` if SIGTERM came and nothing is held.

  Python swallows what is raised in a destructor, so it may be asked for again.
  """
  if _state["asked"] and not _state["held"] and (
      not jax.distributed.is_initialized()):
    raise Stopped
