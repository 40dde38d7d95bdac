"""Tables of a benchmark for the terminal and for Markdown, and its figure."""

import statistics

from experiments.app import text_tables
from experiments.benchmarking import runs as benchmark_runs
from experiments.evaluation import figures
from experiments.rivals import engines

_TITLES = {"rate": "tokens/s", "same": "x same dtype", "any": "x any",
           "block_efficiency": "block eff.", "steps": "target calls",
           "roofline": "roofline", "first_seconds": "first call, s",
           "peak_mb": "peak, MB"}
_SPECS = {"rate": ".1f", "steps": ".0f", "roofline": ".0%",
          "first_seconds": ".1f", "peak_mb": ".0f"}
# Names of what drafts nothing.
_PLAIN = ("autoregressive", "plain", "compiled")
_COLORS = {True: "#D55E00", False: "#666666"}


def rows(records, bounds=None):
  """Makes one row per entry, in the order of the records.

  Args:
    records: of `runs.measure`.
    bounds: `record -> seconds`, the hardware's lower bound; None for none.

  Returns:
    list of dicts with `entry`; `rate`, tokens per second, and `steps`, target
    calls: [median, least, most] over the rounds; `block_efficiency`, `roofline`
    and `peak_mb`; `first_seconds` of the first call; `same` and `any`, the
    rate over that of the best exact rival of the same batch and temperature, in
    the same dtype and in any. Unknown values are None; `error` says why a
    rival has none.
  """
  by_entry = {}
  for record in records:
    by_entry.setdefault(benchmark_runs.entry_of(record), []).append(record)
  found = [_row(entry, group, bounds) for entry, group in by_entry.items()]
  for row in found:
    rivals = [
        x for x in found if x["entry"].tool != benchmark_runs.OURS and
        x["rate"] and _is_exact(x["entry"]) and
        x["entry"][3:] == row["entry"][3:]
    ]
    same = [x for x in rivals if x["entry"].dtype == row["entry"].dtype]
    row["same"], row["any"] = (_over(row, x) for x in (same, rivals))
  return found


def _row(entry, records, bounds):
  rounds = [r for r in records if r["round"] and "error" not in r]
  first = [r["seconds"] for r in records if not r["round"] and "seconds" in r]
  known = [r for r in rounds if r["row_calls"]]
  limits = [bounds(r) for r in known] if bounds else []
  share = [limit / r["seconds"] for limit, r in zip(limits, known) if limit]
  return {
      "entry": entry,
      "rate": _spread(r["emitted"] / r["seconds"] for r in rounds),
      "steps": _spread(r["steps"] for r in known),
      "block_efficiency": sum(r["emitted"] for r in known) / sum(
          r["row_calls"] for r in known) if known else None,
      "roofline": statistics.median(share) if share else None,
      "first_seconds": first[0] if first else None,
      "peak_mb": max((r["peak_bytes"] / 1e6 for r in rounds
                      if r["peak_bytes"]), default=None),
      "error": None if rounds else next(
          (r["error"] for r in reversed(records) if "error" in r), None),
  }


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


def _over(row, rivals):
  if not rivals or not row["rate"]:
    return None
  return row["rate"][0] / max(x["rate"][0] for x in rivals)


def groups(rows_):
  """Groups rows by (batch, temperature, bits of the weights).

  Groups of wider weights come first; in each the fastest, failures last.

  Args:
    rows_: of `rows`.

  Returns:
    dict of lists.
  """
  found = {}
  for row in sorted(rows_, key=lambda x: -x["rate"][0] if x["rate"] else 0):
    entry = row["entry"]
    group = entry.batch, entry.temperature, benchmark_runs.WEIGHTS[entry.dtype]
    found.setdefault(group, []).append(row)
  bits = list(benchmark_runs.WEIGHTS.values())
  return dict(sorted(found.items(),
                     key=lambda x: (*x[0][:2], bits.index(x[0][2]))))


def terminal(rows_, notes=()):
  """Formats all tables, and remarks on them.

  Args:
    rows_: of `rows`.
    notes: lines of text.
  """
  return text_tables.render(
      [*_tables(rows_), "\n".join([*notes, *remarks(rows_)])],
      text_tables.terminal)


def rates(rows_, sizes) -> str:
  """Formats the rates of our methods next to plain decoding's.

  Args:
    rows_: of `rows`, of our methods alone.
    sizes: parameters of target and draft.

  Returns:
    A title, a table, and a sentence about the fastest method.
  """
  blocks = []
  for group, members in groups(rows_).items():
    plain = next(row for row in members if _is_plain(row))
    best = members[0]["entry"].name
    members = [{**row, "plain": _over(row, [plain])} for row in members]
    blocks += [
        ("Tokens a second on a pair of "
         f"{' and '.join(f'{x / 1e6:.0f} M' for x in sizes)} parameters\n"
         f"{title(*group)}", text_tables.pivot(
             _long(members), {"method": ""}, form=_range,
             titles={"rate": "tokens/s", "plain": "x plain",
                     "block_efficiency": "block eff."}, specs={"rate": ".0f"})),
        f"{best} is the fastest, at {members[0]['plain']:.2f} times the rate "
        "of plain decoding."]
  return text_tables.render(blocks, text_tables.terminal)


def write(folder, rows_, notes=(), about=""):
  """Writes `summary.md` and `tokens_per_second.png`.

  Args:
    folder: to write to.
    rows_: of `rows`.
    notes: lines of text.
    about: of `provenance.markdown`.
  """
  text_tables.write(folder / "summary.md", [
      "# Benchmark", about, _NOTE, "\n".join([*notes, *remarks(rows_)]),
      *_tables(rows_)])
  figures.save_png(_draw(rows_), folder / "tokens_per_second.png")


def remarks(rows_):
  """Returns lines: our best against theirs in each group, and failures.

  The second line of a group compares plain decoding alone. What is not exact is
  told apart.
  """
  found = []
  for group, members in groups(rows_).items():
    for wanted, what in ((lambda row: True, "the best"),
                         (_is_plain, "the fastest plain decoding")):
      ours, theirs = ([x for x in members if x["rate"] and wanted(x) and
                       (x["entry"].tool == benchmark_runs.OURS) == mine]
                      for mine in (True, False))
      exact = [x for x in theirs if _is_exact(x["entry"])]
      if ours and exact:
        a, b = ours[0], exact[0]
        found.append(
            f"{title(*group)}: {name(a['entry'])} has "
            f"{_over(a, [b]):.2f} times the tokens/s of {name(b['entry'])}, "
            f"{what} of the others.")
      if ours and theirs and theirs[0] not in exact:
        found.append(
            f"{title(*group)}: {name(ours[0]['entry'])} has "
            f"{_over(ours[0], theirs[:1]):.2f} times those of "
            f"{name(theirs[0]['entry'])}, which is not exact.")
  return found + [f"{name(x['entry'])} in {x['entry'].dtype}, "
                  f"{title(*x['entry'][3:])}: {x['error']}"
                  for x in rows_ if x["error"]]


def _is_plain(row):
  return row["entry"].name in _PLAIN


def name(entry):
  """Returns the name of an entry, with a star if it is not exact."""
  return f"{entry.tool} {entry.name}" + ("" if _is_exact(entry) else " *")


def title(batch, temperature, bits=""):
  """Returns the title of a group, of all weights or of those of some bits."""
  return f"Batch {batch}, temperature {temperature:g}" + (
      f", {bits}" if bits else "")


def _tables(rows_):
  return [(title(*group), text_tables.pivot(
      _long(members), {"name": "", "dtype": "dtype"}, titles=_TITLES,
      form=_range, specs=_SPECS)) for group, members in groups(rows_).items()]


def _long(rows_):
  """Returns the long records of rows."""
  return [r for row in rows_ for r in text_tables.long_records(
      {x: figure for x, figure in row.items() if x not in ("entry", "error")},
      name=name(row["entry"]), method=row["entry"].name,
      dtype=row["entry"].dtype)]


def _range(value, low, high, spec):
  """Formats a median, and the range if it is not empty."""
  if low is not None and f"{low:{spec}}" == f"{high:{spec}}":
    low = None
  return text_tables.interval(value, low, high, spec)


def _draw(rows_):
  """Draws bars of tokens per second, with a panel per group."""
  # Imported here to start runs half a second earlier.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  panels = {group: [row for row in members if row["rate"]]
            for group, members in groups(rows_).items()}
  sizes = [max(len(members), 1) for members in panels.values()]
  fig = figure.Figure(figsize=(7.5, 0.6 * len(sizes) + 0.24 * sum(sizes)),
                      layout="constrained")
  axes = fig.subplots(len(sizes), 1, squeeze=False, height_ratios=sizes)[:, 0]
  for ax, (group, members) in zip(axes, panels.items()):
    middles, lows, highs = (
        [x["rate"][i] for x in members] for i in range(3))
    ax.barh([f"{name(x['entry'])} {x['entry'].dtype}" for x in members],
            middles,
            height=0.7,
            color=[
                _COLORS[x["entry"].tool == benchmark_runs.OURS] for x in members
            ],
            xerr=[[m - x for m, x in zip(middles, lows)],
                  [x - m for m, x in zip(middles, highs)]])
    ax.invert_yaxis()
    ax.tick_params(axis="y", labelsize=7)
    ax.set_title(title(*group), fontsize=10)
    ax.grid(axis="x", alpha=0.3)
  axes[-1].set_xlabel("tokens per second; bars: range over rounds")
  return fig


_NOTE = """\
Medians over rounds, with the least and the most. In each round every row
decodes the same prompts once, ours and the others' in turn; another tool is a
process of its own, and only one computes at a time.

- Bits are those of the target's matrices. 16 are bfloat16, or what an engine
  has in its place; 8 are q8_0 of llama.cpp, or int8 with a scale for each
  channel, as ours; drafts may have fewer.
- *: texts do not have the target's distribution, as `experiments.exactness
  --engine` tests. Such rows are left out of the next two columns.
- x same dtype, x any: tokens/s over those of the best row of all other tools,
  in the same dtype and in any.
- Block efficiency: tokens per target call. Target calls: of all rows at once.
- Roofline: the time that bandwidth, measured right before each run, and matrix
  products of this device allow for the forwards, over the time it took, prompt
  included.
- First call: with compilation, which the other columns exclude.
- Peak: peak memory of the process during the run, models included."""
