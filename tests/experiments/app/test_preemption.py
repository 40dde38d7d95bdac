"""SIGTERM while the main thread cannot be asked."""

import subprocess
import time

import pytest

from experiments.harness import store as results
from support import helpers

_PROGRAM = '''
import pathlib, sys, time
import jax
from experiments.app import launch, preemption
from experiments.harness import cells, store as results

folder = pathlib.Path(sys.argv.pop())
preemption.PATIENCE = 1.0


def endless(_):
  """What XLA never has done."""
  # One write: lines of two threads would mix.
  print("begun\\n", end="", flush=True)
  return jax.jit(lambda x: jax.lax.while_loop(
      lambda x: x >= 0, lambda x: (x + 1) % 7, x))(0)


def main():
  preemption.listen()
  results.append(folder / results.RESULTS, {"cell": 1})
  WHAT


launch.run(main)
'''
_LATE = '''with preemption.defer_signals():
    print("begun", flush=True)
    time.sleep(4)
    results.append(folder / results.RESULTS, {"cell": 2})'''
_WAYS = {
    "main thread": "jax.block_until_ready(endless(0))",
    "warm-up": "cells.warm_up({x: lambda: endless(0) for x in 'ab'}, 2)",
    "deferred": '''with preemption.deferred():
    jax.block_until_ready(endless(0))''',
    "error on the way": '''try:
    jax.block_until_ready(endless(0))
  finally:
    while True: time.sleep(1)''',
}


def _stopped(tmp_path, what):
  """Starts a program, ends it by SIGTERM; its results and the seconds."""
  process = helpers.start(
      "-c", _PROGRAM.replace("WHAT", what), tmp_path)
  try:
    if (line := process.stdout.readline()) != "begun\n":
      process.kill()
      pytest.fail(f"{line!r}: {process.communicate()}")
    time.sleep(0.5)
    start = time.monotonic()
    process.terminate()
    _, errors = process.communicate(timeout=30)
  except subprocess.TimeoutExpired:
    process.kill()
    pytest.fail(f"SIGTERM does not end it: {process.communicate()}")
  assert process.returncode == 0, errors
  assert errors.splitlines()[-1] == "stopped; resume with the same command."
  return (results.read(tmp_path / results.RESULTS),
          time.monotonic() - start)


@pytest.mark.parametrize("way", _WAYS)
def test_what_computes_for_ever_ends(way, tmp_path):
  result, seconds = _stopped(tmp_path, _WAYS[way])
  assert result == [{"cell": 1}]
  assert seconds < 10


def test_what_is_held_is_written_before(tmp_path):
  result, seconds = _stopped(tmp_path, _LATE)
  assert result == [{"cell": 1}, {"cell": 2}]
  assert seconds > 2
