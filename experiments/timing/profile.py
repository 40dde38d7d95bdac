"""Where the time of a step goes, from a trace of JAX's profiler.

Operations of a compiled program carry the names of the parts that they stand
for; the profiler tells what each of them took. On several cores or streams they
overlap, so their sum may be more than the time of a step.
"""

import collections
import pathlib
import re
from typing import NamedTuple

import jax
from jax.profiler import ProfileData

from experiments.app import launch
from experiments.app import text_tables

# Parts of a step, the innermost one counts; what is in none is the rest.
_PARTS = ("draft_forward", "draft", "target_forward", "verify", "commit")
_REST = "rest"
# These stand for what they run, which is listed as well.
_AROUND = {"while", "conditional", "call"}
_INSTRUCTION = re.compile(
    r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][\w\-]*)\(', re.MULTILINE)
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) .*\{$')
_CALLS = re.compile(r'calls=%?([\w.\-]+)')
_READ = re.compile(r'%([\w.\-]+)')
_NAME = re.compile(r'op_name="([^"]*)"')
_LONGEST = 12


class Part(NamedTuple):
  """What was measured under one name.

  Attributes:
    name: of a part of a step, or of an operation.
    milliseconds: a step.
    runs: operations a step.
  """
  name: str
  milliseconds: float
  runs: float


def profile(run, steps, folder) -> str:
  """Traces a run, and writes profile.md beside the trace.

  Args:
    run: function without arguments, compiled already, that returns arrays.
    steps: how many steps of decoding it takes.
    folder: of the trace, which TensorBoard, XProf and Perfetto read.

  Returns:
    The table of profile.md.
  """
  folder = pathlib.Path(folder)
  with launch.user_errors(OSError):
    folder.mkdir(parents=True, exist_ok=True)
  with jax.profiler.trace(str(folder)):
    jax.block_until_ready(run())
  newest = max(folder.rglob("*.xplane.pb"), key=lambda x: x.stat().st_mtime)
  text = table(*parts(_events(newest), _places(_programs()), steps))
  (folder / "profile.md").write_text(text + "\n", "utf-8")
  return text


def parts(events, places, steps):
  """Sums of events.

  Args:
    events: (program, operation, nanoseconds) of each.
    places: (program, operation) -> (opcode, part).
    steps: to divide by.

  Returns:
    list of `Part`, of the parts in their order; and of the operations that
    took longest.
  """
  sums, counts = collections.Counter(), collections.Counter()
  for program, operation, nanoseconds in events:
    opcode, part = places.get((program, operation), (None, None))
    if opcode and opcode not in _AROUND:
      for name in (part, f"{part}: {operation}"):
        sums[name] += nanoseconds
        counts[name] += 1
  found = {name: Part(name, sums[name] / steps / 1e6, counts[name] / steps)
           for name in sums}
  operations = [x for name, x in found.items() if ":" in name]
  return ([found[name] for name in (*_PARTS, _REST) if name in found],
          sorted(operations, key=lambda x: -x.milliseconds)[:_LONGEST])


def table(of_step, operations) -> str:
  """Parts and operations as one table."""
  total = sum(part.milliseconds for part in of_step)
  lines = [["part", "ms a step", "share", "operations"]]
  for part in (*of_step, Part("all", total, sum(x.runs for x in of_step)),
               *operations):
    lines.append([part.name, f"{part.milliseconds:.3f}",
                  f"{100 * part.milliseconds / max(total, 1e-9):.1f} %",
                  f"{part.runs:.1f}"])
  return text_tables.plain_table(lines)


def _events(path):
  """(program, operation, nanoseconds) of what compiled programs ran."""
  for plane in ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      for event in line.events:
        stats = dict(event.stats)
        if "hlo_op" in stats and "hlo_module" in stats:
          yield stats["hlo_module"], stats["hlo_op"], event.duration_ns


def _programs():
  """(name, text) of the compiled programs that are loaded."""
  for executable in jax.devices()[0].client.live_executables():
    for module in executable.hlo_modules():
      yield module.name, module.to_string()


def _places(programs):
  """(program, operation) -> (opcode, part of a step)."""
  found = {}
  for name, text in programs:
    operations = list(_operations(text))
    # Others, such as that of the prefill, are no part of a step.
    if any(part != _REST for _, _, part in operations):
      found.update({(name, operation): (opcode, part)
                    for opcode, operation, part in operations})
  return found


def _operations(text):
  """(opcode, name, part of a step) of all instructions of a program."""
  bodies, body = {}, []
  for line in text.splitlines():
    head = _COMPUTATION.match(line)
    if head:
      body = bodies.setdefault(head[1], [])
    elif instruction := _INSTRUCTION.match(line):
      body.append((instruction[2], instruction[1], _names(line), line))
  # What the compiler has made itself may have no name. It then belongs where
  # what is inside of it does, or around it, or what it reads.
  inside = {computation: {part for _, _, part, _ in body if part}
            for computation, body in bodies.items()}
  for computation, body in bodies.items():
    known = {}
    for opcode, operation, part, line in body:
      calls = _CALLS.search(line)
      candidates = [{part} - {None}, inside.get(calls[1]) if calls else None,
                    inside[computation]]
      read = [known[x] for x in _READ.findall(line) if known.get(x)]
      known[operation] = next(
          (min(x) for x in candidates if x and len(x) == 1),
          read[0] if read else None)
      yield opcode, operation, known[operation] or _REST


def _names(line):
  """The part of a step that an instruction is named by; None without name."""
  scope = _NAME.search(line)
  if not scope:
    return None
  names = scope[1].split("/")
  return next((part for part in _PARTS if part in names), _REST)
