"""Tables and sentences about the cells of a run, and the files of its summary.

Cells are the long records of `record_figures`; trees are those of them that are
best of their method, see `best`.
"""

import itertools
import math
import statistics

from scipy import special

from experiments.app import text_tables
from experiments.app.text_tables import grouped, pivot, select
from experiments.evaluation import figures
from experiments.evaluation import provenance
from experiments.evaluation import record_figures

FILES = "summary.md", "summary.csv", "summary.tex", "*.png", "*.pdf"
TITLES = {"length": "Fixed draft length", "budget": "Fixed target budget"}
RESULTS = {
    "block_efficiency": "block efficiency (tau)",
    "acceptance_by_depth": "acceptance rate by position",
    "token_rate": "tokens/s",
    "token_rate_ratio": "speed-up",
    "mbsu": "MBSU"}
# Of methods whose drafts go on over calls alone.
_LONG_DRAFTS = {"mean_accepted": "mean accepted tokens"}
# Of these the terminal shows a table by category.
_SHOWN = ("block_efficiency", "token_rate_ratio")
_CHECKS = {
    "log_prob": "log-prob a token", "deviation": "standard errors",
    "acceptance_by_rank": "by sibling rank", "idle_share": "idle",
    "compile_seconds": "compile, s",
    # Figures of the texts, which tasks with references have.
    "bleu": "BLEU", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L"}
_SPECS = {"token_rate": ".1f", "deviation": "+.1f", "idle_share": ".0%",
          "compile_seconds": ".1f"}
_ROWS = {"name": "method", "nodes": "nodes", "depth": "depth"}
_COLUMNS = {"block_efficiency": "block_efficiency",
            "acceptance_by_depth": "acceptance",
            "token_rate": "tokens_per_second", "token_rate_ratio": "speed_up",
            "mbsu": "mbsu"}
_TIES = (" At temperature 0 texts part where two tokens tie, as they often do "
         "in bfloat16.")
# Probability that a correct program is called wrong.
_FALSE_ALARM = 0.01
# Standard errors; a limit above it is too loose to tell anything.
_MOST_ALLOWED = 6
# Methods that a sentence names, at most.
_NAMED = 6
# Parameters below which the weights of a target are read in no time.
_SMALL = 20e6
_WHY_SLOW = (
    "Where trees are slower here it is because reading {:.1f} M parameters "
    "takes no time: each node that the target scores, and each draft level, "
    "costs its own. Where trees pay: python -m experiments.benchmark")


def best(cells, points) -> list[dict]:
  """Finds the best tree of each method.

  Args:
    cells: of `record_figures.long_records`.
    points: dict from (experiment, point) to names of methods.

  Returns:
    Those cells of `figures.METRICS`, of all prompts, with the largest figure of
    their label, with `experiment` and `point`.
  """
  found = {}
  for (temperature,), some in grouped(_overall(cells), "temperature").items():
    by_cell = {(r["method"], r["metric"]): r for r in some}
    for (experiment, point), names in points.items():
      for metric, name in itertools.product(figures.METRICS, names):
        cell = by_cell.get((name, metric))
        if cell:
          cell = {**cell, "experiment": experiment, "point": point}
          key = experiment, temperature, metric, cell["label"], point
          found[key] = max(found.get(key, cell), cell, key=lambda r: r["value"])
  return list(found.values())


def results(cells) -> list:
  """Returns a table for each temperature: all figures of all methods."""
  more = _LONG_DRAFTS if select(cells, metric="mean_accepted") else {}
  titles = {**RESULTS, **more, "against_plain": "than plain decoding"}
  return [(f"Results, temperature {temperature:g}",
           pivot(some, _ROWS, titles=titles, specs=_SPECS))
          for (temperature,), some in grouped(_overall(cells),
                                              "temperature").items()]


def by_category(cells, metrics=tuple(RESULTS)) -> list:
  """Returns a table for each temperature and figure: methods by category.

  Args:
    cells: of `record_figures.long_records`.
    metrics: keys of `RESULTS`.

  Returns:
    list of (title, lines); without tables where prompts have no category, and
    of figures that were not measured by category.
  """
  titles = {r["category"]: f"{r['category']} ({r['prompts']})" for r in cells}
  return [(f"By category, temperature {temperature:g}: {RESULTS[metric]}",
           pivot(some, {"name": "method (prompts)"}, "category", titles,
                 specs=_SPECS))
          for (temperature,), of_all in grouped(cells, "temperature").items()
          for metric in metrics for some in [select(of_all, metric=metric)]
          if any(r["category"] != record_figures.ALL for r in some)]


def best_by_point(trees, with_rates=True) -> list:
  """Returns a table for each experiment: the best trees, a part a figure.

  Args:
    trees: of `best`.
    with_rates: whether token rates are among the figures.
  """
  found = []
  for (experiment, temperature), chosen in _experiments(trees).items():
    lines = []
    for metric, title in figures.METRICS.items():
      if with_rates or metric != "token_rate_ratio":
        head, *rows = pivot(select(chosen, metric=metric), {"label": title},
                            "point", form=text_tables.plus_minus)
        lines += [head, *([f"  {label}", *rest] for label, *rest in rows)]
    found.append((f"{TITLES[experiment]}, temperature {temperature:g}; best "
                  f"tree of each method\ncolumns: {figures.POINTS[experiment]}",
                  lines))
  return found


def best_and_names(trees) -> list:
  """Returns a table for each experiment: the best trees and their names."""
  titles = {}
  for metric, title in figures.METRICS.items():
    titles |= {metric: title, f"its {metric}": "its tree"}
  found = []
  for (experiment, temperature), chosen in _experiments(trees).items():
    names = [{**r, "metric": f"its {r['metric']}", "value": r["method"],
              "low": None} for r in chosen]
    found.append((
        f"{TITLES[experiment]}, temperature {temperature:g}",
        pivot(sorted([*chosen, *names], key=lambda r: r["point"]),
              {"point": figures.POINTS[experiment], "label": "method"},
              titles=titles)))
  return found


def checks(cells) -> list:
  """Returns a table for each temperature of what checks the run."""
  measured = {r["metric"] for r in cells}
  titles = {x: title for x, title in _CHECKS.items() if x in measured}
  rows = {"method": "tree", "nodes": "nodes", "depth": "depth"}
  return [(f"All trees, temperature {temperature:g}",
           pivot(some, rows, titles=titles, specs=_SPECS))
          for (temperature,), some in grouped(_overall(cells),
                                              "temperature").items()]


def sanity(cells) -> str:
  """Returns a line: log-probabilities compared with plain decoding's."""
  found = [r for r in select(cells, metric="deviation") if not math.isnan(
      r["value"]) and r["method"] != record_figures.PLAIN]
  # Of a few prompts the standard errors are uncertain themselves.
  limit = math.inf if not found else special.stdtrit(
      found[0]["prompts"] - 1, 1 - _FALSE_ALARM / 2 / len(found))
  if not limit <= _MOST_ALLOWED:  # Of a single prompt it is NaN.
    return "Log-probability of the output: too few prompts to compare."
  worst = max(found, key=lambda r: abs(r["value"]))
  agrees = abs(worst["value"]) < limit
  verdict = "agrees with" if agrees else "DIFFERS FROM"
  return (
      f"Log-probability of the output {verdict} autoregressive decoding: of "
      f"{len(found)} cells the furthest, {worst['method']} at "
      f"T={worst['temperature']:g}, is {worst['value']:+.1f} standard errors "
      f"away ({limit:.1f} allowed)."
      + ("" if agrees or worst["temperature"] else _TIES))


def idleness(cells) -> str:
  """Returns a line: the share of row-steps spent on rows that had finished."""
  found = select(cells, metric="idle_share")
  worst = max(found, key=lambda r: r["value"])
  return (f"Idle row-steps: {statistics.mean(r['value'] for r in found):.0%} a "
          f"cell, at most {worst['value']:.0%} ({worst['method']} at "
          f"T={worst['temperature']:g}).")


def speeds(cells, parameters) -> list[str]:
  """Returns sentences about what is faster than plain decoding, what slower.

  Args:
    cells: of `record_figures.long_records`.
    parameters: of the target.

  Returns:
    A line for each temperature, and, where trees are slower on a small target,
    one of why, and where they pay; none where nothing was timed.
  """
  found = []
  for (temperature,), chosen in grouped(_overall(cells),
                                        "temperature").items():
    timed = [r for r in select(chosen, metric="token_rate_ratio")
             if r["method"] != record_figures.PLAIN and r["value"]]
    if timed:
      fastest = max(timed, key=lambda r: r["value"])
      rate, = select(chosen, method=fastest["method"], metric="token_rate")
      found.append(f"Temperature {temperature:g}: {_fastest(fastest, rate)}"
                   f"{_slower(timed)}")
  if parameters < _SMALL and any(
      r["nodes"] > r["depth"] and r["against_plain"] == record_figures.SLOWER
      for r in cells):
    found.append(_WHY_SLOW.format(parameters / 1e6))
  return found


def _fastest(cell, rate):
  text = (f"{cell['name']} is the fastest, at "
          f"{text_tables.interval(*text_tables.figure(cell))} "
          f"times the rate of plain decoding ({rate['value']:.0f} tokens/s).")
  if cell["against_plain"] == record_figures.FASTER:
    return text
  return f"no method is measurably faster than plain decoding; {text}"


def _slower(timed):
  slower = sorted((r for r in timed if r["against_plain"]
                   == record_figures.SLOWER), key=lambda r: r["value"])
  names = [f"{r['name']} ({r['value']:.2f})" for r in slower]
  if len(names) > _NAMED:
    return (f" Slower than plain decoding: {len(names)} of {len(timed)} "
            f"methods, down to {names[0]}.")
  return f" Slower than plain decoding: {', '.join(names)}." if names else ""


def terminal(cells, trees, parameters, note="", with_rates=True) -> str:
  """Formats what the terminal has room for.

  Args:
    cells: of `record_figures.long_records`.
    trees: of `best`.
    parameters: of the target.
    note: sentences about the prompts; "" for none.
    with_rates: whether token rates are among the figures.
  """
  return text_tables.render([
      *best_by_point(trees, with_rates), note, idleness(cells), sanity(cells),
      *by_category(cells, _SHOWN),
      *(speeds(cells, parameters) if with_rates else ())],
                            text_tables.terminal)


def write(folder, cells, trees, parameters, note, settings) -> None:
  """Writes `FILES`.

  Args:
    folder: Path to write to.
    cells: of `record_figures.long_records`.
    trees: of `best`.
    parameters: of the target.
    note: sentences about the prompts; "" for none.
    settings: of the run, see `provenance`.
  """
  about = provenance.markdown(settings)
  tables = [*results(cells), *by_category(cells)]
  text_tables.write(folder / "summary.md", [
      "# Draft trees", about, _NOTE, note, *speeds(cells, parameters),
      idleness(cells), sanity(cells), *tables, *best_and_names(trees),
      *checks(cells)])
  comment = "".join(f"% {line}\n" for line in about.splitlines())
  text_tables.write(folder / "summary.tex", [
      f"{comment}% \\usepackage{{booktabs}}", *tables], text_tables.latex)
  text_tables.write_csv(
      folder / "summary.csv", cells, ("temperature", "method", "category",
                                      "prompts", "nodes", "depth",
                                      "against_plain"),
      _COLUMNS, provenance.fields(settings))
  figures.write(folder, trees)
  figures.write_by_category(folder, cells)


def _overall(cells):
  return select(cells, category=record_figures.ALL)


def _experiments(trees):
  """Returns a dict from (experiment, temperature) to its trees."""
  return grouped(trees, "experiment", "temperature")


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
- Idle: share of the row-steps of the loop in which a row had finished and
  waited for its batch, or only filled it, or read the next prompt of a queue.
  Prompts share a batch with those whose texts by autoregressive decoding were
  about as long.

Settings and environment: run.json. Counts of each prompt: results.jsonl. These
tables: summary.csv, summary.tex."""
