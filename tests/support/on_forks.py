"""Runs commands of Python, each in a fork of this process.

What most of them import, this process imports once. It reads a line of JSON a
command, and prints another of its exit status, its output and its errors.
"""

import atexit
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback

for _name in ("absl.app", "decoding_jax", "flax.linen", "models.checkpoints",
              "ml_collections.config_flags", "models.huggingface.heads",
              "optax", "scipy.optimize"):
  importlib.import_module(_name)


def become(command, *outputs):
  """Runs a command, with files for its output and errors, and ends with it.

  As Python ends, but for what it frees, which takes longer than most commands.
  """
  os.chdir(command["folder"])
  os.environ.update(command["variables"])
  for number, file in enumerate((open(os.devnull, "rb"), *outputs)):
    os.dup2(file.fileno(), number)
  flag, what, *sys.argv[1:] = command["arguments"]
  status = 0
  try:
    if flag == "-m":
      runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
      exec(what, {"__name__": "__main__"})  # pylint: disable=exec-used
  except SystemExit as e:
    status = e.code or 0
  except BaseException:  # pylint: disable=broad-exception-caught
    traceback.print_exc()
    status = 1
  atexit._run_exitfuncs()
  sys.stdout.flush()
  os._exit(status)


def main():
  for line in iter(sys.stdin.readline, ""):
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
      child = os.fork()
      if not child:
        become(json.loads(line), output, errors)
      status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      texts = []
      for file in output, errors:
        file.seek(0)
        texts.append(file.read().decode())
      print(json.dumps([status, *texts]), flush=True)


if __name__ == "__main__":
  main()
