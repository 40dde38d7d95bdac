"""Tables of a benchmark for the terminal and for Markdown, and its figure."""

import statistics

from experiments.app import text_tables
from experiments.benchmarking import entries
from experiments.harness import figures
from experiments.rivals import engines

_TITLES = {"rate": "tokens/s", "same": "x same dtype", "any": "x any",
           "plain": "x plain", "block_efficiency": "block eff.",
           "steps": "target calls", "first_seconds": "first call, s",
           "peak_mb": "peak, MB"}
_SPECS = {"rate": ".1f", "steps": ".0f", "first_seconds": ".1f",
          "peak_mb": ".0f"}


def rows(records) -> list[dict]:
  """Makes one row per entry, in the order of the records.

  `rate` and `steps` are [median, least, most] over the rounds; `same` and `any`
  the rate over the best exact rival's of the same batch and temperature, in the
  same dtype and in any, and `rivals` these two rows; `plain` is over our plain
  decoding's in the same dtype. None is unknown; `error` says why.
  """
  by_entry = {}
  for record in records:
    entry = entries.Entry(*(record[x] for x in entries.Entry._fields))
    by_entry.setdefault(entry, []).append(record)
  table = [_row(entry, group) for entry, group in by_entry.items()]
  for row in table:
    rivals = [x for x in table if x["entry"].tool != entries.OURS
              and x["rate"] and _is_exact(x["entry"])
              and x["entry"][3:] == row["entry"][3:]]
    same = [x for x in rivals if x["entry"].dtype == row["entry"].dtype]
    row["rivals"] = [max(some, key=lambda x: x["rate"][0], default=None)
                     for some in (same, rivals)]
    row["same"], row["any"] = (_over(row, x) for x in row["rivals"])
    row["plain"] = _over(row, next(
        (x for x in table if x["rate"] and x["entry"] == row["entry"]._replace(
            tool=entries.OURS, name="autoregressive")), None))
  return table


def _row(entry, records):
  rounds = [r for r in records if r["round"] and "error" not in r]
  first = [r["seconds"] for r in records if not r["round"] and "seconds" in r]
  known = [r for r in rounds if r["row_calls"]]
  return {
      "entry": entry,
      "rate": _spread(r["emitted"] / r["seconds"] for r in rounds),
      "steps": _spread(r["steps"] for r in known),
      "block_efficiency": sum(r["emitted"] for r in known) / sum(
          r["row_calls"] for r in known) if known else None,
      "first_seconds": first[0] if first else None,
      "peak_mb": max((r["peak_bytes"] / 1e6 for r in rounds
                      if r["peak_bytes"]), default=None),
      "error": None if rounds else next(
          (r["error"] for r in reversed(records) if "error" in r), None)}


def _spread(values):
  """Returns [median, least, most]; None without values."""
  values = list(values)
  return [statistics.median(values), min(values), max(values)] if values else (
      None)


def _is_exact(entry):
  """Returns whether texts have the target's distribution, as far as known."""
  engine = engines.ENGINES.get(entry.tool)
  return not (engine and entry.temperature and
              entry.name.partition("(")[0] in engine.inexact)


def _over(row, other):
  return row["rate"][0] / other["rate"][0] if row["rate"] and other else None


def groups(rows_) -> dict:
  """Groups rows by (batch, temperature, bits of the weights), wider ones first.

  In each group the fastest is first, failures last.
  """
  by_group = {}
  for row in sorted(rows_, key=lambda x: -x["rate"][0] if x["rate"] else 0):
    entry = row["entry"]
    group = entry.batch, entry.temperature, entries.WEIGHTS[entry.dtype]
    by_group.setdefault(group, []).append(row)
  bits = list(entries.WEIGHTS.values())
  return dict(sorted(by_group.items(),
                     key=lambda x: (*x[0][:2], bits.index(x[0][2]))))


def terminal(rows_, notes=()) -> str:
  """Formats all tables, and lines of text; the last ones name the fastest."""
  return text_tables.render(
      [*_tables(rows_), "\n".join([*notes, *_failures(rows_)]),
       "\n".join(_fastest(rows_))], text_tables.terminal)


def _fastest(rows_):
  return [f"{title(*group)}: {name(first['entry'])} is the fastest, at "
          f"{first['plain']:.2f} times the rate of our plain decoding."
          for group, (first, *_) in groups(rows_).items() if first["plain"]]


def write(folder, rows_, notes=(), about="") -> None:
  """Writes `summary.md` and the figure tokens_per_second."""
  text_tables.write(folder / "summary.md", [
      "# Benchmark", about, _NOTE, "\n".join([*notes, *_failures(rows_)]),
      *_tables(rows_)])
  figures.write(folder, "tokens_per_second", {
      (0, i): _panel(title(*group), members)
      for i, (group, members) in enumerate(groups(rows_).items())},
                "tokens per second, range over rounds", linestyle="none")


def _panel(title_, members):
  members = [row for row in members if row["rate"]]
  series = {}
  for i, row in enumerate(members):
    series.setdefault(row["entry"].tool, []).append((i, row["rate"]))
  return figures.Panel(series, title_, ticks={
      i: row["entry"].name for i, row in enumerate(members)})


def _failures(rows_):
  return [f"{name(x['entry'])} in {x['entry'].dtype}, "
          f"{title(*x['entry'][3:])}: {x['error']}"
          for x in rows_ if x["error"]]


def name(entry) -> str:
  """Returns the name of an entry, with a star if it is not exact."""
  return f"{entry.tool} {entry.name}" + ("" if _is_exact(entry) else " *")


def title(batch, temperature, bits="") -> str:
  """Returns the title of a group, of all weights or of weights of some bits."""
  return f"Batch {batch}, temperature {temperature:g}" + (
      f", {bits}" if bits else "")


def _tables(rows_):
  """Returns a table for each group, of the columns that it knows."""
  known = lambda members: {
      x: column for x, column in _TITLES.items()
      if any(row[x] is not None for row in members)}
  return [(title(*group) + _references(members[0]), text_tables.pivot(
      _long(members), {"name": "", "dtype": "dtype"}, titles=known(members),
      form=_range, specs=_SPECS)) for group, members in groups(rows_).items()]


def _references(row):
  """Names the rows that the ratios of a group refer to."""
  return "".join(
      f"; {_TITLES[column]}: over {name(x['entry'])} in {x['entry'].dtype}, "
      f"{x['rate'][0]:.1f} tokens/s"
      for column, x in zip(("same", "any"), row["rivals"]) if x)


def _long(rows_):
  """Returns the long records of rows."""
  return [r for row in rows_ for r in text_tables.long_records(
      {x: row[x] for x in _TITLES}, name=name(row["entry"]),
      dtype=row["entry"].dtype)]


def _range(value, low, high, spec):
  """Formats a median, and the range if it is not empty."""
  if low is not None and f"{low:{spec}}" == f"{high:{spec}}":
    low = None
  return text_tables.interval(value, low, high, spec)


_NOTE = """\
Medians over rounds, with the least and the most. In each round every row
decodes the same prompts once, ours and the others' in turn; another tool is a
process of its own, and only one computes at a time.

- Bits of the target's matrices: 16 are bfloat16, or what an engine has
  instead; 8 are q8_0 of llama.cpp, or int8 with a scale for each
  channel, as ours; drafts may have fewer.
- *: texts do not have the target's distribution, as `experiments.exactness
  --engine` tests. The next two columns never refer to such rows.
- x same dtype, x any: tokens/s over the best row's of all other tools,
  in the same dtype and in any, which the title names. x plain: over ours of
  plain decoding in the same dtype.
- Block efficiency: tokens per target call. Target calls: of all rows at once.
- First call: with compilation, which the other columns exclude.
- Peak: peak memory of the process during the run, models included."""
