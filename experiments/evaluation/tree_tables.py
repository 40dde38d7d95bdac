"""The tables, figures and files of `experiments.rsd`.

Cells are the long records of `tree_figures`; trees are the cells that are best
of their method, see `best`.
"""

import itertools

from experiments.app import text_tables
from experiments.app.text_tables import grouped, pivot, select
from experiments.evaluation import tree_figures
from experiments.harness import figures
from experiments.harness import provenance

FILES = "summary.md", "summary.csv", "summary.tex", "*.png", "*.pdf"
RESULTS = {
    "block_efficiency": "block efficiency (tau)",
    "acceptance_by_depth": "acceptance rate by position",
    "token_rate": "tokens/s", "plain_rate": "plain tokens/s",
    "token_rate_ratio": "speed-up", "mbsu": "MBSU",
    "mean_accepted": "mean accepted tokens"}
# Trees are compared by these, and drawn.
_BEST = {"block_efficiency": "block efficiency", "mbsu": "MBSU",
         "token_rate_ratio": "speed-up"}
_EXPERIMENTS = {"length": "Fixed draft length", "budget": "Fixed target budget"}
_POINTS = {"length": "draft length", "budget": "nodes scored a target call"}
_ORDERED = {"length": "block_efficiency", "budget": "mbsu"}
_FEWEST = 8  # Prompts of a distance from plain decoding.
_CHECKS = {
    "log_prob": "log-prob a token", "deviation": "standard errors",
    "acceptance_by_rank": "by sibling rank", "idle_share": "idle",
    "compile_seconds": "compile, s",
    # Figures of the texts, which tasks with references have.
    "bleu": "BLEU", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L",
    "exact_match": "exact match, %", "pass_at_1": "pass@1, %"}
_SPECS = {"token_rate": ".1f", "plain_rate": ".1f", "deviation": "+.1f",
          "idle_share": ".0%", "compile_seconds": ".1f"}
_ROWS = {"name": "method", "nodes": "nodes", "depth": "depth"}
_COLUMNS = {"block_efficiency": "block_efficiency",
            "acceptance_by_depth": "acceptance",
            "token_rate": "tokens_per_second",
            "plain_rate": "plain_tokens_per_second",
            "token_rate_ratio": "speed_up", "mbsu": "mbsu"}


def best(cells, points) -> list[dict]:
  """Returns the best tree of each label for each figure and point.

  Points are (experiment, point) -> names of methods; trees are cells of all
  prompts, with `experiment` and `point`.
  """
  trees = {}
  for (temperature,), some in _overall(cells):
    by_cell = {(r["method"], r["metric"]): r for r in some}
    for (experiment, point), names in points.items():
      for metric, name in itertools.product(_BEST, names):
        cell = by_cell.get((name, metric))
        if cell:
          cell = {**cell, "experiment": experiment, "point": point}
          key = experiment, temperature, metric, cell["label"], point
          trees[key] = max(trees.get(key, cell), cell, key=lambda r: r["value"])
  return list(trees.values())


def _overall(cells):
  return grouped(select(cells, category=tree_figures.ALL),
                 "temperature").items()


def _of_all(cells, title, columns, rows):
  """Returns a table for each temperature: figures of all methods."""
  measured = {r["metric"] for r in cells}
  titles = {x: column for x, column in columns.items() if x in measured}
  return [(f"{title}, temperature {temperature:g}",
           pivot(some, rows, titles=titles, specs=_SPECS))
          for (temperature,), some in _overall(cells) if titles]


def by_category(cells, metrics=tuple(RESULTS)) -> list:
  """Returns a table for each temperature and figure: methods by category.

  None where prompts have no category.
  """
  titles = {r["category"]: f"{r['category']} ({r['prompts']})" for r in cells}
  return [(f"By category, temperature {temperature:g}: {RESULTS[metric]}",
           pivot(some, {"name": "method (prompts)"}, "category", titles,
                 specs=_SPECS))
          for (temperature,), of_all in grouped(cells, "temperature").items()
          for metric in metrics for some in [select(of_all, metric=metric)]
          if any(r["category"] != tree_figures.ALL for r in some)]


def best_by_point(trees, metrics=tuple(_BEST), names=False) -> list:
  """Returns a table for each experiment and temperature, a part a figure.

  With `names` each figure is followed by the tree that has it.
  """
  tables = []
  for (experiment, temperature), some in grouped(trees, "experiment",
                                                 "temperature").items():
    lines = []
    for metric in metrics:
      chosen = select(some, metric=metric)
      if names:
        chosen = [x for r in chosen for x in (
            r, {**r, "value": r["method"], "low": None})]
      head, *rows = pivot(chosen, {"label": _BEST[metric]}, "point",
                          form=text_tables.plus_minus)
      lines += [head, *([f"  {label}", *rest] for label, *rest in rows)]
    tables.append((f"{_EXPERIMENTS[experiment]}, temperature {temperature:g}; "
                   f"best tree of each method\ncolumns: {_POINTS[experiment]}",
                   lines))
  return tables


def orders(records, trees) -> list[str]:
  """Returns a line for each point: the methods in order, with paired gains.

  By tokens a target call at a draft length and by MBSU within a budget, since
  a chain may be as deep as a budget has nodes.
  """
  records = {(r["temperature"], r["method"]): r for r in records}
  lines = []
  for (experiment, temperature, point), some in grouped(
      trees, "experiment", "temperature", "point").items():
    metric = _ORDERED[experiment]
    ranked = sorted(select(some, metric=metric), key=lambda r: -r["value"])
    gains = [tree_figures.gain(*(records[temperature, r["method"]]
                                 for r in pair), metric)
             for pair in itertools.pairwise(ranked)]
    if gains:
      order = [ranked[0]["label"], *(
          f"{r['label']} by {text_tables.interval(*gain, '.1f')}"
          for r, gain in zip(ranked[1:], gains))]
      lines.append(f"{_POINTS[experiment]} {point}, temperature "
                   f"{temperature:g}: {' > '.join(order)}")
  return lines


def terminal(cells, trees, note="") -> str:
  """Formats what the terminal has room for; `note` is about the prompts."""
  rates = {x: RESULTS[x] for x in (
      "token_rate", "plain_rate", "token_rate_ratio")}
  return text_tables.render([
      note, *_of_all(cells, "Rates", rates, {"name": "method"}),
      *by_category(cells, ("block_efficiency", "token_rate_ratio")),
      _furthest(cells), *best_by_point(trees, ("block_efficiency", "mbsu"))],
                            text_tables.terminal)


def _furthest(cells):
  """Returns a line: the largest distance from the text of plain decoding."""
  # Few prompts do not tell how far apart prompts are.
  distances = [r for r in select(cells, metric="deviation")
               if r["method"] != tree_figures.PLAIN
               and r["prompts"] >= _FEWEST]
  if not distances:
    return ""
  worst = max(distances, key=lambda r: abs(r["value"]))
  return (f"Mean log-probability, distance from plain decoding: at most "
          f"{worst['value']:+.1f} standard errors of {len(distances)} cells "
          f"({worst['method']}, temperature {worst['temperature']:g}).")


def verdict(cells, expected, tolerance) -> str:
  """Returns a line: which block efficiencies are as published, method -> it."""
  measured = [(r, expected[r["method"]]) for r in select(
      cells, metric="block_efficiency", category=tree_figures.ALL)
              if r["method"] in expected]
  far = [f"{r['method']} {r['value']:.3f}, not {published:.3f}"
         for r, published in measured
         if abs(r["value"] - published) > tolerance * published]
  return (f"Published block efficiencies: {len(measured) - len(far)} of "
          f"{len(measured)} hit within {tolerance:.0%}"
          f"{'; ' * bool(far)}{'; '.join(far)}.")


def write(folder, cells, trees, note, settings, order=()) -> None:
  """Writes `FILES` of cells and trees to a folder, see `terminal`, `orders`."""
  about = provenance.markdown(settings)
  tables = [*_of_all(cells, "Results", RESULTS, _ROWS), *by_category(cells)]
  text_tables.write(folder / "summary.md", [
      "# Draft trees", about, _NOTE, note, *tables,
      *best_by_point(trees, names=True),
      ORDERS_NOTE if order else "", "\n".join(f"- {x}" for x in order),
      *_of_all(cells, "All trees", _CHECKS, _ROWS)])
  comment = "".join(f"% {line}\n" for line in about.splitlines())
  text_tables.write(folder / "summary.tex", [
      f"{comment}% \\usepackage{{booktabs}}", *tables], text_tables.latex)
  text_tables.write_csv(
      folder / "summary.csv", cells, ("temperature", "method", "category",
                                      "prompts", "nodes", "depth"),
      _COLUMNS, provenance.fields(settings))
  for metric, title in _BEST.items():
    panels = grouped(select(trees, metric=metric), "experiment", "temperature")
    figures.write(folder, metric, {
        at: panel(f"T = {at[1]:g}", some) for at, some in panels.items()},
                  title, baseline=1)


def write_joined(folder, column, runs, head) -> str:
  """Writes and returns a comparison of runs, name -> their trees of `best`.

  `column` tells what the names are, "drafter" or "task"; the file begins with
  `head`. A row of a figure has the temperatures that are at the same place in
  each run, since tasks may have different ones.
  """
  trees = [{**r, column: name, "T": f"{r['temperature']:g}"}
           for name, of_run in runs.items() for r in of_run]
  rows = {column: column, "T": "T", "label": "method"}
  tables = lambda form: [
      (f"{_EXPERIMENTS[experiment]}: {_BEST[metric]}\ncolumns: "
       f"{_POINTS[experiment]}", pivot(some, rows, "point", form=form))
      for (experiment, metric), some in grouped(
          trees, "experiment", "metric").items()]
  text_tables.write(folder / "summary.md", [
      f"# By {column}", head, _JOINED_NOTE.format(column=column),
      *tables(text_tables.interval)])
  places = {name: list(dict.fromkeys(r["temperature"] for r in of_run))
            for name, of_run in runs.items()}
  for metric, title in _BEST.items():
    figures.write(folder, metric, {
        ((experiment, places[name].index(t)), name): panel(
            f"{name}, T = {t:g}", some) for (experiment, t, name), some in
        grouped(select(trees, metric=metric), "experiment", "temperature",
                column).items()}, title, baseline=1)
  return text_tables.render(tables(text_tables.plus_minus),
                            text_tables.terminal)


def panel(title, trees) -> figures.Panel:
  """Returns the panel of trees of one experiment by size, a line a label.

  A size is the nodes of a tree within a budget, else its point. The best tree
  within a budget may have fewer nodes, so that several points have one tree.
  """
  within = trees[0]["experiment"] == "budget"
  series = {}
  for r in trees:
    sizes = series.setdefault(r["label"], {})
    size = r["nodes"] if within else r["point"]
    figure = text_tables.figure(r)
    sizes[size] = max(sizes.get(size, figure), figure, key=lambda x: x[0])
  return figures.Panel(
      {x: sorted(sizes.items()) for x, sizes in series.items()}, title,
      _POINTS[trees[0]["experiment"]], sorted({r["point"] for r in trees}),
      within)


_NOTE = """\
Figures with 95 % bootstrap intervals: over prompts, and over batches for rates
where prompts share a batch.

- Block efficiency (tau): tokens per target call.
- Acceptance rate by position: share of the target calls that accepted a token
  of a level, of those that accepted one of the level above.
- MBSU: block efficiency / (1 + draft forwards a step x draft parameters /
  target parameters).
- Speed-up: tokens/s over plain tokens/s, of autoregressive decoding,
  timed again in the course of each tree's run. Compilation is excluded, the
  prefill of prompts is not.
- Standard errors: distance of the mean log-probability of the output from that
  of autoregressive decoding. All methods sample from the target's distribution,
  so it is noise. At temperature 0 texts are equal up to rounding: where two
  tokens tie, as they often do in bfloat16, texts part.
- Idle: share of the row-steps of the loop in which a row had finished and
  waited for its batch, or only filled it, or read the next prompt of a queue.

Settings and environment: run.json. Counts of each prompt: results.jsonl. These
tables: summary.csv, summary.tex."""
ORDERS_NOTE = """\
Methods in order, by the best tree of each: by block efficiency at a draft
length, by MBSU within a budget. Gains over the next are in %, paired by
prompts; where an interval holds 0, the order of the two is not shown."""
_JOINED_NOTE = """\
Figures with 95 % bootstrap intervals over prompts, of each method's best tree.
Which these are: in the summary of each {column}."""
