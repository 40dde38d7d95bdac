"""A server of `subprocess_server` that only repeats the prompts."""

import os
import sys

from experiments.rivals import subprocess_server


def load(request):
  if request.get("broken"):
    raise ValueError("this model is broken\nand there is more to say")
  print("what a library prints")
  os.write(1, b"and what its C code does\n")
  return request, {"device": "none"}


def generate(state, request):
  if request.get("die"):
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)
  if request.get("fail"):
    raise RuntimeError("")
  return {"tokens": request["prompts"], "seconds": 0.5,
          "target_calls": state.get("calls"), "peak_bytes": None}


if __name__ == "__main__":
  subprocess_server.serve(load, generate)
