"""Tables of an experiment, for the terminal and for Markdown."""

import itertools
import math
import statistics

from scipy import special

from decoding_jax import metrics
from experiments.app import text_tables

TITLES = {"length": "Fixed draft length", "budget": "Fixed target budget"}
POINTS = {"length": "draft length", "budget": "nodes scored a target call"}
METRICS = {"block_efficiency": "block efficiency", "mbsu": "MBSU",
           "token_rate_ratio": "token rate x AR"}
# Figures of the texts, which tasks with references have.
QUALITY = {"bleu": "BLEU", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L"}
LABELS = {"speculative": "SD", "spectr": "SpecTr", "specinfer": "SpecInfer",
          "rsd_c": "RSD-C", "rsd_s": "RSD-S", "pearl": "PEARL",
          "opt_tree": "OPT-Tree",
          "token_recycling": "Token Recycling",
          "prompt_lookup": "prompt lookup", "suffix": "suffix decoding",
          "lookahead": "Lookahead", "aded": "ADED", "gsd": "GSD"}
# Mean log-probabilities that differ by less, differ by rounding.
_ROUNDING = 1e-4
_TIES = (" At temperature 0 texts part where two tokens tie, as they often do "
         "in bfloat16.")
# Probability that a correct program is called wrong.
_FALSE_ALARM = 0.01
# Standard errors; a limit above it is too loose to tell anything.
_MOST_ALLOWED = 6


def rows(records, points, temperatures):
  """Sorts records of cells into the experiments that they belong to.

  Args:
    records: of `run.run`, with `temperature` and `metrics`.
    points: dict from (experiment, point) to names of methods.
    temperatures: which to report.

  Returns:
    list of dicts: a record with `experiment`, `point`, `label` and `deviation`
    (of its log-probabilities from those of autoregressive decoding, in standard
    errors). A cell of two experiments appears twice; autoregressive decoding
    comes first, as an experiment of its own.
  """
  found = {(r["method"], r["temperature"]): r for r in records}
  points = {("autoregressive", 0): ["autoregressive"], **points}
  return [_row(found, experiment, point, name, temperature)
          for temperature in temperatures
          for (experiment, point), names in points.items() for name in names]


def _row(found, experiment, point, name, temperature):
  record = found[name, temperature]
  plain = found["autoregressive", temperature]
  return {**record, "experiment": experiment, "point": point,
          "label": label(name), "deviation": _deviation(record, plain)}


def label(name) -> str:
  """Returns what papers call a method, without its sizes.

  Args:
    name: such as "rsd_s(3x4, traversal)", which is "RSD-S, traversal".
  """
  family = name.split("(")[0]
  # After its sizes, a name has its verification if that is not the default.
  _, *forms = name.removesuffix(")").split(", ")
  forms = [form for form in forms if form.isidentifier()]
  return ", ".join([LABELS.get(family, family), *forms])


def _deviation(record, plain):
  if abs(record["metrics"]["log_prob"][0] -
         plain["metrics"]["log_prob"][0]) < _ROUNDING:
    return 0.0
  return metrics.deviation(record["log_prob"], record["emitted"],
                           plain["log_prob"], plain["emitted"])


def best(rows_, metric):
  """Finds the best tree of each method.

  Args:
    rows_: of `rows`.
    metric: a key of `METRICS`.

  Returns:
    dict from (experiment, temperature) to a dict from label to a dict from
    point to the row with the largest figure.
  """
  found = {}
  for row in rows_:
    if row["experiment"] in TITLES:
      trees = found.setdefault((row["experiment"], row["temperature"]), {})
      trees = trees.setdefault(row["label"], {})
      rival = trees.get(row["point"])
      if not rival or row["metrics"][metric][0] > rival["metrics"][metric][0]:
        trees[row["point"]] = row
  return found


def sanity(rows_):
  """Compares the output's log-probability with autoregressive decoding's.

  Args:
    rows_: of `rows`.

  Returns:
    One line of text.
  """
  cells = {(row["method"], row["temperature"]): row["deviation"]
           for row in rows_ if row["experiment"] in TITLES}
  cells = {cell: d for cell, d in cells.items() if not math.isnan(d)}
  # Of a few prompts the standard errors are uncertain themselves.
  limit = math.inf if not cells else special.stdtrit(
      len(rows_[0]["emitted"]) - 1, 1 - _FALSE_ALARM / 2 / len(cells))
  if not limit <= _MOST_ALLOWED:  # Of a single prompt it is NaN.
    return "Log-probability of the output: too few prompts to compare."
  (method, temperature), worst = max(cells.items(), key=lambda x: abs(x[1]))
  verdict = "agrees with" if abs(worst) < limit else "DIFFERS FROM"
  return (
      f"Log-probability of the output {verdict} autoregressive decoding: of "
      f"{len(cells)} cells the furthest, {method} at T={temperature:g}, is "
      f"{worst:+.1f} standard errors away ({limit:.1f} allowed)."
      + (_TIES if not temperature and verdict != "agrees with" else ""))


def idleness(rows_):
  """Reports the share of row-steps spent on rows that had finished.

  Args:
    rows_: of `rows`.

  Returns:
    One line of text.
  """
  shares = {f"{row['method']} at T={row['temperature']:g}":
            row["metrics"]["idle_share"][0] for row in rows_}
  worst = max(shares, key=shares.get)
  return (f"Idle row-steps: {statistics.mean(shares.values()):.0%} a cell, at "
          f"most {shares[worst]:.0%} ({worst}).")


def terminal(rows_, note="", with_rates=True):
  """Formats the tables of the best trees.

  Args:
    rows_: of `rows`.
    note: sentences about the prompts; "" for none.
    with_rates: whether token rates are among the figures.
  """
  blocks = []
  shown = {metric: title for metric, title in METRICS.items()
           if with_rates or metric != "token_rate_ratio"}
  tables = {metric: best(rows_, metric) for metric in shown}
  for experiment, temperature in tables["mbsu"]:
    lines = []
    for metric, title in shown.items():
      trees = tables[metric][experiment, temperature]
      points = sorted({point for row in trees.values() for point in row})
      lines.append([title, *map(str, points)])
      lines += [[f"  {label}", *(_figure(row.get(point), metric)
                                 for point in points)]
                for label, row in trees.items()]
    head = (f"{TITLES[experiment]}, temperature {temperature:g}; best tree of "
            f"each method\ncolumns: {POINTS[experiment]}")
    blocks.append(f"{head}\n{text_tables.plain_table(lines)}")
  return "\n\n".join([*blocks, *filter(None, [note]), idleness(rows_),
                      sanity(rows_)])


def _figure(row, metric):
  return "" if row is None else plus_minus(row["metrics"][metric])


def plus_minus(figure, digits=2):
  """Formats a figure with half of its interval; "-" for None."""
  return _with_bounds(figure, digits, lambda low, high: (
      f"±{(high - low) / 2:.{digits}f}"))


def _with_bounds(figure, digits, form):
  value, low, high = figure
  if value is None:
    return "-"
  return f"{value:.{digits}f}" + ("" if low is None else form(low, high))


def write(path, rows_, note="", about="", results=""):
  """Writes the summary: results, the best trees, checks of all cells.

  Args:
    path: file.
    rows_: of `rows`.
    note: sentences about the prompts and speeds; "" for none.
    about: of `provenance.markdown`.
    results: tables of results, in Markdown.
  """
  tables = {metric: best(rows_, metric) for metric in METRICS}
  blocks = ["# Draft trees", *filter(None, [about, _NOTE, note]),
            idleness(rows_), sanity(rows_), *filter(None, [results])]
  quality = [name for name in QUALITY if name in rows_[0]["metrics"]]
  head = [*_HEAD, *(QUALITY[name] for name in quality)]
  for key in tables["mbsu"]:
    experiment, temperature = key
    blocks += [f"## {TITLES[experiment]}, temperature {temperature:g}",
               _best_table(experiment, {m: tables[m][key] for m in METRICS})]
  for temperature in dict.fromkeys(row["temperature"] for row in rows_):
    cells = {row["method"]: row for row in rows_
             if row["temperature"] == temperature}
    blocks += [
        f"## All trees, temperature {temperature:g}",
        text_tables.markdown_table(
            [head, *(_cell_line(row, quality) for row in cells.values())])
    ]
  path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def _best_table(experiment, trees):
  lines = [[POINTS[experiment], "method"]]
  for title in METRICS.values():
    lines[0] += [title, "its tree"]
  by_label = trees["mbsu"]
  for point in sorted({p for row in by_label.values() for p in row}):
    for label in by_label:
      if point in by_label[label]:
        line = [str(point), label]
        for metric in METRICS:
          row = trees[metric][label][point]
          line += [interval(row["metrics"][metric]), row["method"]]
        lines.append(line)
  return text_tables.markdown_table(lines)


def _cell_line(row, quality):
  figures = row["metrics"]
  return [row["method"], str(row["tree_nodes"]), str(row["depth"]),
          interval(figures["log_prob"]), f"{row['deviation']:+.1f}",
          _shares([x for x, _, _ in figures["acceptance_by_depth"]],
                  figures.get("bound_by_depth", ())),
          _shares(figures["acceptance_by_rank"]),
          f"{figures['idle_share'][0]:.0%}", f"{row['compile_seconds']:.1f}",
          *(interval(figures[name]) for name in quality)]


def interval(figure, digits=2):
  """Formats a figure with the ends of its interval; "-" for None."""
  return _with_bounds(figure, digits, lambda low, high: (
      f" [{low:.{digits}f}, {high:.{digits}f}]"))


def _shares(values, bounds=()):
  """Formats shares, each with its bound in brackets if there is one."""
  found = ["-" if x is None else f"{x:.2f}" for x in values]
  return " ".join(
      x if bound is None else f"{x} ({bound:.2f})"
      for x, bound in itertools.zip_longest(found, bounds[:len(found)]))


_HEAD = ["tree", "nodes", "depth", "log-prob a token", "standard errors",
         "acceptance by depth", "by sibling rank", "idle", "compile, s"]
_NOTE = """\
Figures with 95 % bootstrap intervals: over prompts, and over batches for rates
where prompts share a batch. First all trees on all prompts, and by category of
prompts if these have one; then the trees that are best of their method for a
figure; then what checks the run.

- Block efficiency (tau): tokens per target call.
- Acceptance rate by position: share of the target calls that accepted a token
  of a level, of those that accepted one of the level above.
- MBSU: block efficiency / (1 + draft forwards a step x draft parameters /
  target parameters).
- Speed-up, or token rate x AR: tokens a second relative to autoregressive
  (plain) decoding, which was timed again in the course of each tree's run; a
  method is slower than plain decoding if all of the interval is below 1.
  Compilation is excluded, the prefill of prompts is not.
- Standard errors: distance of the mean log-probability of the output from that
  of autoregressive decoding. All methods sample from the target's distribution,
  so it is noise. At temperature 0 texts are equal up to rounding: where two
  tokens tie, as they often do in bfloat16, texts part, and the distance is one
  between ties, not between methods.
- Acceptance by depth is that by position. In brackets the most that any rule
  could accept at these nodes, with children drawn as they were, where it is
  known; it is measured on a sample of them.
- Idle: share of the row-steps of the loop in which a row had finished and
  waited for its batch, or only filled it. Prompts share a batch with those
  whose texts by autoregressive decoding were about as long.

Settings and environment: run.json. Counts of each prompt: results.jsonl. These
tables: summary.csv, summary.tex."""
