"""Whether texts solve their task: numbers, and code that passes its tests."""

import re
import subprocess
import sys
import tempfile

import numpy as np

# What stands for the text in a program that tests it.
TEXT = "{completion}"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SECONDS, _BYTES = 5, 2**30
# How a child process ends that has run a program to its end.
_PASSED = 77
# The limits hold before a line of the program is read.
_CHILD = f"""
import resource, sys
for limit, most in ((resource.RLIMIT_CPU, {_SECONDS}),
                    (resource.RLIMIT_AS, {_BYTES}), (resource.RLIMIT_FSIZE, 0)):
  resource.setrlimit(limit, (most, most))
exec(compile(sys.stdin.read(), "program", "exec"), {{"__name__": "program"}})
sys.exit({_PASSED})
"""


def exact_match(texts, references):
  """Returns `[R]`, 100 where the last number of a text is the reference's.

  A text without a number is no match, though its reference has none either.
  """
  return np.array([100. * (_last_number(text) == _last_number(reference)
                           is not None)
                   for text, reference in zip(texts, references, strict=True)])


def pass_at_1(texts, programs):
  """Returns `[R]`, 100 where a program passes whose `TEXT` is the text."""
  return np.array([100. * passes(program.replace(TEXT, text))
                   for text, program in zip(texts, programs, strict=True)])


def passes(program: str) -> bool:
  """Runs Python code in a process of its own; returns whether it ends well.

  It has 5 seconds, 1 GiB, an empty folder and no variables, and writes no
  files. That is no sandbox: it can read files and open connections.
  """
  with tempfile.TemporaryDirectory() as folder:
    try:
      return subprocess.run(
          [sys.executable, "-I", "-c", _CHILD], input=program.encode(),
          cwd=folder, env={}, stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL, timeout=2 * _SECONDS,
          check=False).returncode == _PASSED
    except subprocess.TimeoutExpired:
      return False


def _last_number(text):
  numbers = _NUMBER.findall(text)
  return float(numbers[-1].replace(",", "")) if numbers else None
