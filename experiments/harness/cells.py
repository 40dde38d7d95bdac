"""The loop of an experiment: cells without a record are measured, one by one.

A cell is a line of `results.jsonl`, such as a method at a temperature. Its
programs are compiled before it is measured, and its record is on the disk
before the next cell begins, so that a run killed at any moment resumes there.
"""

import concurrent.futures
import functools
import sys
from typing import Any, Callable, NamedTuple

import tqdm

from decoding_jax import kernels
from experiments.app import multihost
from experiments.app import preemption
from experiments.app import text_tables
from experiments.harness import store
from experiments.timing import stopwatch


class Cell(NamedTuple):
  """One line of results, before it is measured."""
  key: dict  # Tells its record from others; all cells have the same fields.
  # (records so far, seconds of its warm-up) -> other fields; with `error` it
  # has failed, and is tried again by the next start.
  measure: Callable[[list[dict], float | None], dict]
  program: Any  # Equal for cells whose programs are compiled together.
  # Compiles and runs these programs; None: `measure` does.
  warm_up: Callable[[], Any] | None = None


class Timed(NamedTuple):
  """Outputs and seconds of each batch, and (output, seconds) of a baseline."""
  outputs: list
  seconds: list[float]
  references: list[tuple]


def run(cells, path, *fields, first=None, workers=1, unit="cell", shapes=0
        ) -> list[dict]:
  """Measures the cells that have no record in a file yet.

  `fields` are what each record there has beside the keys, `first` (program ->
  warm-up, or None) what all cells need, such as the baseline. Returns the
  records in the order of cells; none where an earlier cell of the same program
  failed. The first lines say how many cells and programs, each of so many
  `shapes` (0: not said), there are, and how long the rest may take.
  """
  first = {x: call for x, call in (first or {}).items() if call}
  records = store.read(path, *(cells[0].key if cells else ()), *fields)
  latest = {_identity(r, cells): r for r in records} if cells else {}
  todo = [x for x in cells if "error" in latest.get(
      _identity(x.key, cells), {"error": ""})]
  seconds, failed, told = {}, set(), False
  with multihost.progress(len(todo), unit, smoothing=0) as bar:
    if todo:
      programs = len({x.program for x in todo} | {*first}) * shapes
      _note(f"{text_tables.count(len(todo), unit)} of {len(cells)} to measure"
            + f", {programs} programs to compile" * bool(shapes))
    if todo and first:
      bar.set_description("compiling what all need")
      seconds = warm_up(first, workers)
    for i, cell in enumerate(todo):
      if cell.program not in failed:
        if cell.warm_up and cell.program not in seconds:
          seconds |= _compiled(todo[i:], seconds, workers, bar)
        bar.set_description(" ".join(map(str, cell.key.values())))
        values, taken = stopwatch.timed(functools.partial(
            cell.measure, records, seconds.get(cell.program)))
        record = {**cell.key, **values}
        seconds.setdefault(cell.program, None)
        store.append(path, record)
        # After one that drafts, whose program is larger than the baseline's.
        if not told and cell.program not in first and todo[i + 1:]:
          told = True
          _note(_forecast(todo[i + 1:], seconds, first, workers, taken))
        records.append(record)
        latest[_identity(record, cells)] = record
        if "error" in record:
          failed.add(cell.program)
        preemption.check()
      bar.update()
  identities = [_identity(x.key, cells) for x in cells]
  return [latest[x] for x in identities if x in latest]


def _identity(record, cells):
  # A list, which no cell has, could not be looked up.
  return tuple(str(record[name]) if isinstance(record[name], (list, dict))
               else record[name] for name in cells[0].key)


def _compiled(cells, known, workers, bar):
  """Compiles the next programs of cells; returns the seconds of each."""
  left = {x.program: x for x in cells if x.warm_up and x.program not in known}
  group = list(left.values())[:workers]
  names = dict.fromkeys(str(next(iter(x.key.values()))) for x in group)
  bar.set_description(f"compiling {', '.join(names)}; {len(left)} are left")
  return warm_up({x.program: x.warm_up for x in group}, workers)


def _note(line):
  if multihost.first():
    tqdm.tqdm.write(line, file=sys.stderr)


def _forecast(cells, known, first, workers, taken):
  """Returns a line on how long `cells` take, if they are as what was done."""
  compiled = [x for program, x in known.items()
              if x is not None and program not in first]
  each = sum(compiled) / max(len(compiled), 1) / workers
  left = len({x.program for x in cells} - known.keys())
  minutes = (len(cells) * taken + left * each) / 60
  return (f"about {minutes:.0f} min are left: {len(cells)} times {taken:.1f} s "
          + f"and {left} times {each:.1f} s to compile" * bool(compiled))


def warm_up(programs, workers) -> dict:
  """Calls functions, several at a time; returns the seconds of each."""
  pool = concurrent.futures.ThreadPoolExecutor(workers)
  try:
    return dict(zip(programs, pool.map(lambda f: stopwatch.timed(f)[1],
                                       programs.values())))
  finally:
    # A program that is to end does not wait for programs that run.
    pool.shutdown(wait=False, cancel_futures=True)


def at_once(mesh) -> int:
  """Returns how many programs may be compiled and run at a time."""
  # Devices wait for each other within a program: two devices that ran two
  # programs in different orders would deadlock.
  return kernels.cores() if mesh is None else 1


def timed(decode, baseline, batches, most, call=stopwatch.decoded) -> Timed:
  """Decodes all batches, with timings of the baseline in between.

  Machines are noisy and drift, so a cell's speed is relative to the baseline in
  the course of it, on at most `most` batches spread over the cell, or none.
  """
  references, outputs, seconds = [], [], []
  stride = -(-len(batches) // max(most, 1))
  for i, batch in enumerate(batches):
    # In the middle of each stride, since the longest texts may come last.
    if most and i % stride == stride // 2:
      references.append(call(baseline, batch))
    out, time = call(decode, batch)
    outputs.append(out)
    seconds.append(time)
  return Timed(outputs, seconds, references)
