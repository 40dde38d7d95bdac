"""Measures the entries of a benchmark, ours alone or in turn with others'."""

import functools
import itertools
import json
import time

from experiments.benchmarking import entries
from experiments.benchmarking import systems
from experiments.benchmarking import tables
from experiments.devices import model_pair
from experiments.harness import cells
from experiments.harness import provenance
from experiments.harness import store
from experiments.rivals import engines

# Fields that only choose what is measured, and how often.
FREE = ("methods", "rivals", "dtypes", "rival_dtypes", "batches",
        "temperatures", "rounds", "compilation_cache", "pairs")
# Threads of a tool spin for a moment after its run; the next tool waits.
_PAUSE_SECONDS = 0.2


def cells_of(groups, rounds, run) -> list[cells.Cell]:
  """Returns a cell for each entry and round; `run(entry, round) -> record`."""
  def measure(entry, number):
    time.sleep(_PAUSE_SECONDS)
    return run(entry, number)

  return [cells.Cell({**entry._asdict(), "round": number},
                     lambda *_, x=(entry, number): measure(*x), entry,
                     # Compiled by an earlier start, not by this one.
                     functools.partial(measure, entry, 0) if number else None)
          for group in groups for number in range(rounds + 1)
          for entry in group]


def measure(config, pair, methods, groups, path) -> list[dict]:
  """Measures what has no record in a file yet; returns all records."""
  prompts = functools.cache(lambda: systems.prompts(config, pair))
  with systems.servers(config, pair, path.parent) as servers:
    def run(entry, number):
      if entry.tool == entries.OURS:
        return systems.ours(config, pair, methods, prompts(), entry, number)
      return systems.theirs(config, servers, prompts(), entry, number)

    return cells.run(cells_of(groups, config.rounds, run), path, unit="run")


def run(config, workdir):
  """Measures our methods and the installed tools; writes and prints tables.

  Returns the pair and our methods by name.
  """
  entries.check(config)
  methods = entries.methods_of(config.methods)
  pair = systems.open_pair(config, workdir)
  models = systems.with_dtype(pair, pair.dtype)
  for method, temperature in itertools.product(methods.values(),
                                               config.temperatures):
    model_pair.check(method, models, config.prompt_length,
                     config.max_new_tokens,
                     systems.sampling(config, temperature))
  settings = {**json.loads(config.to_json()),
              "models": model_pair.fingerprint(models)}
  workdir = store.open_workdir(workdir, settings, FREE, timed=True,
                               compiled=config.compilation_cache)
  tools, notes = _tools(config)
  rows = tables.rows(measure(config, pair, methods,
                             entries.groups(config, methods, tools),
                             workdir / store.RESULTS))
  notes += systems.remarks(pair, models)
  tables.write(workdir, rows, notes, provenance.markdown(
      {**settings, "target": str(pair.target), "draft": str(pair.draft)}))
  print(f"{tables.terminal(rows, notes)}\n{workdir}: summary.md, "
        f"{store.RESULTS}, {store.RUN}, *.png, *.pdf")
  return pair, methods


def _tools(config):
  """Returns the installed rivals with settings, and a line for each."""
  tools, notes = [], []
  for tool in (name for name, settings in config.rivals.items() if settings):
    names = engines.missing(tool)
    if names:
      notes.append(f"{tool} was left out: {', '.join(names)} is not installed "
                   f"({engines.ENGINES[tool].hint}).")
      print(notes[-1], flush=True)
    else:
      tools.append(tool)
      notes.append(f"{tool}: {engines.versions(tool)}.")
  return tools, notes
