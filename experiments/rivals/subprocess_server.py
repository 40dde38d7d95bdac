"""Runs other tools as servers, each in its own process.

So their threads and memory do not mix with ours. A server reads requests from
stdin and writes answers to stdout, a line of JSON each; between requests it
waits in a read and computes nothing. The first request is `{"load": ...}`, all
others `{"generate": ...}`. An answer to a failed request has an `error`.
Settings of most servers:

    plain      autoregressive decoding with default options
    assisted   speculative decoding with the draft model, `length` tokens a step
    lookup     speculative decoding with n-grams copied from the text
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from typing import Any, NamedTuple

from experiments.rivals import engines

# Servers are modules of this checkout, whichever Python runs them.
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_STATUS = pathlib.Path("/proc/self/status")
_FORGET = pathlib.Path("/proc/self/clear_refs")


class Failure(Exception):
  """A failed request of a rival, in one line."""


class Rival(NamedTuple):
  """A server that runs."""
  process: subprocess.Popen
  log: Any  # File with its stderr.
  answer: dict  # To the request to load, with the device that it uses.


def start(tool, load) -> Rival:
  """Starts a server, to be ended by `stop`; raises `Failure`."""
  log, engine = tempfile.TemporaryFile("w+"), engines.ENGINES[tool]
  path = os.pathsep.join(filter(None, [str(_ROOT),
                                       os.environ.get("PYTHONPATH", "")]))
  process = subprocess.Popen(
      [engines.python(tool), "-m", engine.server], stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, stderr=log, text=True,
      env={**os.environ, "PYTHONPATH": path, **engine.environment})
  rival = Rival(process, log, {})
  try:
    return rival._replace(answer=_ask(rival, {"load": load}))
  except BaseException:
    stop(rival)
    raise


def generate(rival, request) -> dict:
  """Returns `tokens` of each row without its prompt, `seconds`, and perhaps
  `target_calls` and `peak_bytes`; raises `Failure`, and others may follow.
  """
  return _ask(rival, {"generate": request})


def stop(rival) -> None:
  """Ends a server, whatever it is doing."""
  with contextlib.suppress(BrokenPipeError):
    rival.process.stdin.close()
  rival.process.kill()
  rival.process.wait()
  rival.process.stdout.close()
  rival.log.close()


def serve(load, generate_) -> None:
  """Answers requests until stdin ends: the main loop of a server.

  `load` is `request -> (state, answer)`, `generate_` is `(state, request) ->
  answer`. All other output of this process goes to stderr.
  """
  answers, state = os.fdopen(os.dup(1), "w"), None
  os.dup2(2, 1)
  for text in sys.stdin:
    [(name, request)] = json.loads(text).items()
    try:
      if name == "load":
        state, answer = load(request)
      else:
        answer = generate_(state, request)
    except Exception as e:  # Of any library; the parent goes on with others.
      traceback.print_exc()
      [line, *_] = (str(e).strip() or "no reason was given").splitlines()
      answer = {"error": f"{type(e).__name__}: {line}"}
    print(json.dumps(answer), file=answers, flush=True)


def threads(request) -> int:
  """Returns how many threads a server is to use: all cores for none."""
  return request["threads"] or len(os.sched_getaffinity(0))


def reset_peak() -> bool:
  """Resets the peak to the memory in use; returns False if unsupported."""
  try:
    _FORGET.write_text("5")
    return True
  except OSError:
    return False


def peak_memory() -> int | None:
  """Returns the peak in bytes since a reset, else of all; None if unknown."""
  try:
    lines = _STATUS.read_text().splitlines()
  except OSError:
    return None
  sizes = dict(line.split(":", 1) for line in lines)
  return int(sizes["VmHWM"].split()[0]) * 1024


def _ask(rival, request):
  try:
    rival.process.stdin.write(json.dumps(request) + "\n")
    rival.process.stdin.flush()
    line = rival.process.stdout.readline()
  except BrokenPipeError:
    line = ""
  if not line.endswith("\n"):
    raise Failure(f"its process has ended: {_last_words(rival)}")
  answer = json.loads(line)
  if "error" in answer:
    raise Failure(answer["error"])
  return answer


def _last_words(rival):
  status = rival.process.wait()
  rival.log.seek(0)
  lines = rival.log.read().split("\n")
  words = [line.strip() for line in lines if line.strip()]
  return words[-1] if words else f"exit status {status}"
