"""Profiles the parts of a decoding step, from a trace of JAX's profiler.

Operations of a compiled program carry the name of the part of a step that they
belong to; the trace has the time of each. On several cores or streams they
overlap, so their sum may exceed the time of a step.
"""

import collections
import pathlib
import re
from typing import NamedTuple

from absl import flags
import jax

from experiments.app import launch
from experiments.app import multihost
from experiments.app import text_tables
from experiments.devices import hlo_kernels

FOLDER = flags.DEFINE_string(
    "profile", "", "Folder for a profiler's traces, one for each method, and "
    "tables of where the time of a step goes; '' for none.")
# Parts of a step; of nested ones the innermost counts.
_PARTS = ("draft_forward", "draft", "target_forward", "verify", "commit")
_REST = "rest"
# The operations that these run are in the trace, too.
_AROUND = {"while", "conditional", "call"}
_CALLS = re.compile(r'calls=%?([\w.\-]+)')
_NAME = re.compile(r'op_name="([^"]*)"')
_LONGEST = 12


class Part(NamedTuple):
  """Time of a part of a step, or of an operation."""
  name: str
  milliseconds: float  # A step.
  runs: float  # Operations a step.


def show(runs):
  """Prints the tables of `--profile`, of runs that return their steps."""
  for name, run in runs.items():
    # A trace does not distinguish programs of one name.
    jax.clear_caches()
    text = profile(run, run(), pathlib.Path(FOLDER.value,
                                            name.replace("/", "-")))
    if multihost.first():
      print(f"\n{name}\n{text}")


def profile(run, steps, folder) -> str:
  """Traces a run, and writes profile.md next to the trace."""
  folder = pathlib.Path(folder)
  with launch.user_errors(OSError):
    folder.mkdir(parents=True, exist_ok=True)
  with jax.profiler.trace(str(folder)):
    jax.block_until_ready(run())
  newest = max(folder.rglob("*.xplane.pb"), key=lambda x: x.stat().st_mtime)
  programs = [(module.name, module.to_string())
              for executable in jax.devices()[0].client.live_executables()
              for module in executable.hlo_modules()]
  text = table(*parts(_events(newest), _places(programs), steps))
  (folder / "profile.md").write_text(text + "\n", "utf-8")
  return text


def parts(events, places, steps):
  """Sums events by parts and by operations."""
  sums, counts = collections.Counter(), collections.Counter()
  for program, operation, nanoseconds in events:
    opcode, part = places.get((program, operation), (None, None))
    if opcode and opcode not in _AROUND:
      for name in (part, f"{part}: {operation}"):
        sums[name] += nanoseconds
        counts[name] += 1
  measured = {name: Part(name, sums[name] / steps / 1e6, counts[name] / steps)
              for name in sums}
  operations = [x for name, x in measured.items() if ":" in name]
  return ([measured[name] for name in (*_PARTS, _REST) if name in measured],
          sorted(operations, key=lambda x: -x.milliseconds)[:_LONGEST])


def table(of_step, operations) -> str:
  """Formats parts and operations as one table."""
  total = sum(part.milliseconds for part in of_step)
  lines = [["part", "ms a step", "share", "operations"]]
  for part in (*of_step, Part("all", total, sum(x.runs for x in of_step)),
               *operations):
    lines.append([part.name, f"{part.milliseconds:.3f}",
                  f"{100 * part.milliseconds / max(total, 1e-9):.1f} %",
                  f"{part.runs:.1f}"])
  return text_tables.plain_table(lines)


def _events(path):
  from jax.profiler import ProfileData  # If asked for.
  for plane in ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      for event in line.events:
        stats = dict(event.stats)
        if "hlo_op" in stats and "hlo_module" in stats:
          yield stats["hlo_module"], stats["hlo_op"], event.duration_ns


def _places(programs):
  """Returns a dict (program, operation) -> (opcode, part of a step)."""
  places = {}
  for name, text in programs:
    operations = list(_operations(text))
    # Programs without parts, such as the prefill, do not belong to a step.
    if any(part != _REST for _, _, part in operations):
      places.update({(name, operation): (opcode, part)
                     for opcode, operation, part in operations})
  return places


def _operations(text):
  """Yields (opcode, name, part of a step) of all instructions of a program."""
  program = hlo_kernels.parse(text)
  # Instructions that the compiler has made may have no name. They belong to the
  # part of the instructions inside them, around them, or that they read.
  inside = {name: {_part(x) for x in body} - {None}
            for name, body in program.items()}
  for name, body in program.items():
    known = {}
    for x in body:
      calls = _CALLS.search(x.rest)
      candidates = [{_part(x)} - {None},
                    inside.get(calls[1]) if calls else None, inside[name]]
      read = [known[operand] for operand in x.operands if known.get(operand)]
      known[x.name] = next(
          (min(parts) for parts in candidates if parts and len(parts) == 1),
          read[0] if read else None)
      yield x.opcode, x.name, known[x.name] or _REST


def _part(instruction):
  """Returns the part of a step in an instruction's name; None without name."""
  scope = _NAME.search(instruction.rest)
  if not scope:
    return None
  names = scope[1].split("/")
  return next((part for part in _PARTS if part in names), _REST)
