"""Kernels of a compiled GPU program, and the bytes that they read and write."""

import math
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*?^}", re.M | re.S)
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*?)\)(?:, (.*))?$",
    re.M)
_ARRAY = re.compile(r"\b[a-z]+(\d*)(?:e\w+)?\[([\d,]*)\]")
# Scratch memory of cuBLAS, at the end of what it returns.
_WORKSPACE = re.compile(r"(?:/\*index=\d+\*/)?s8\[\d+\]\{0\}\)$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|true_computation|false_computation)=%([^\s,}]+)")
_BRANCHES = re.compile(r"branch_computations={([^}]*)}")
_TRIPS = re.compile(r'"known_trip_count":{"n":"(\d+)"}')
# They rename what there is already, or are part of another instruction.
_FREE = frozenset((
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element",
    "optimization-barrier", "after-all", "partition-id", "replica-id"))
_READS_PARTS = frozenset(("dynamic-slice", "slice", "gather"))
_WRITES_PARTS = {"dynamic-update-slice": 1, "scatter": 2}


class Kernel(NamedTuple):
  """An operation that a GPU starts."""
  name: str
  opcode: str  # such as "fusion" or "copy"
  shape: str  # of its result, such as "bf16[1,32]{1,0}"
  # Read from memory and written there, if no cache had any of it.
  num_bytes: int


class _Instruction(NamedTuple):
  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  rest: str


def of_step(text) -> list[Kernel]:
  """Returns the `Kernel`s of a turn of the loop that reads the most."""
  # In the HLO text of a generation this is the loop over its steps. Of branches
  # the one that reads the most is taken; an inner loop without a known number
  # of turns takes one. Empty without a loop.
  program = parse(text)
  turns = [_kernels(program, _CALLED.search(x.rest)[1])
           for body in program.values() for x in body if x.opcode == "while"]
  return max(turns, key=_num_bytes, default=[])


def parse(text) -> dict[str, list]:
  """Returns the instructions of each computation of a program's HLO text."""
  return {match[1]: [
      _Instruction(x[1], x[2], x[3], tuple(re.findall(r"%([^\s,)]+)", x[4])),
                   x[5] or "")
      for x in _INSTRUCTION.finditer(match[0])]
          for match in _COMPUTATION.finditer(text)}


def _num_bytes(kernels):
  return sum(x.num_bytes for x in kernels)


def _kernels(program, name):
  sizes = []
  shapes = {x.name: _size(x.shape) for x in program[name]}
  for x in program[name]:
    inner = [_kernels(program, called) for called in _inner(x)]
    if inner:
      trips = _TRIPS.search(x.rest) if x.opcode == "while" else None
      sizes += max(inner, key=_num_bytes) * int(trips[1] if trips else 1)
    elif x.opcode not in _FREE and not x.opcode.endswith("-done"):
      sizes.append(Kernel(x.name, x.opcode, x.shape,
                          _moved(program, x, shapes)))
  return sizes


def _inner(instruction):
  """Returns names of the computations that an instruction runs as kernels."""
  if instruction.opcode == "conditional":
    branches = _BRANCHES.search(instruction.rest)
    return (re.findall(r"%([^\s,]+)", branches[1]) if branches
            else _CALLED.findall(instruction.rest))
  if instruction.opcode in ("call", "while", "async-start"):
    return _CALLED.findall(instruction.rest)
  return ()


def _moved(program, kernel, shapes):
  """Counts bytes; of an array that is read or written in part, the part."""
  if kernel.opcode != "fusion":
    body, inputs = [kernel], kernel.operands
    inner = shapes
  else:
    body = program[_CALLED.search(kernel.rest)[1]]
    inner = {x.name: _size(x.shape) for x in body}
    inputs = [x.name for x in body if x.opcode == "parameter"]
  read = sum(_read(body, inner, name) for name in dict.fromkeys(inputs))
  written = [x for x in body if x.opcode in _WRITES_PARTS
             and inner[x.operands[0]] == inner[x.name]]
  return read + (
      sum(inner[x.operands[_WRITES_PARTS[x.opcode]]] for x in written)
      if written else _size(_WORKSPACE.sub("", kernel.shape)))


def _read(body, sizes, name):
  """Counts the bytes that the instructions of a kernel read of an array."""
  total = 0
  for x in body:
    if name not in x.operands:
      continue
    if x.opcode == "bitcast":
      total += _read(body, sizes, x.name)
    elif x.opcode in _READS_PARTS and x.operands[0] == name:
      total += sizes[x.name]
    elif x.opcode not in _WRITES_PARTS or x.operands[0] != name:
      return sizes[name]
  return min(total, sizes[name])


def _size(shape):
  """Returns the bytes of an HLO shape such as "(f32[2,3]{1,0}, pred[])"."""
  # A `pred` takes a byte.
  return sum(int(bits or 8) * math.prod(map(int, filter(None, axes.split(","))))
             // 8 for bits, axes in _ARRAY.findall(shape))
