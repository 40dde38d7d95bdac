"""Measures the entries of a benchmark, ours alone or in turn with others'."""

import functools
import json

from experiments.benchmarking import runs as benchmark_runs
from experiments.benchmarking import systems
from experiments.benchmarking import tables as benchmark_tables
from experiments.devices import model_pair
from experiments.evaluation import provenance
from experiments.evaluation import results_store
from experiments.rivals import engines
from experiments.timing import roofline
from models import transformer

# Fields that only choose what is measured, and how often.
FREE = ("methods", "rivals", "dtypes", "rival_dtypes", "batches",
        "temperatures", "rounds", "compilation_cache", "pairs")


def measure(config, pair, methods, groups, path):
  """Measures the entries that have no result yet.

  Args:
    config: see `configs/benchmark.py`.
    pair: of `systems.open_pair`.
    methods: dict from names to our methods.
    groups: of `runs.entries`.
    path: where results are read from and appended to.

  Returns:
    list of records of the entries of the config.
  """
  if benchmark_runs.todo(groups, config.rounds, benchmark_runs.read(path)):
    texts = systems.prompts(config, pair)
    with systems.servers(config, pair, path.parent) as servers:
      ours = functools.partial(systems.ours, config, pair, methods, texts)
      theirs = functools.partial(systems.theirs, config, servers, texts)

      def run(entry, number):
        # Right before each run, since the speed of a shared machine varies.
        bandwidth = round(roofline.bandwidth())
        take = ours if entry.tool == benchmark_runs.OURS else theirs
        return {"bandwidth": bandwidth, **take(entry, number)}

      benchmark_runs.measure(groups, config.rounds, run, path)
  wanted = {entry for group in groups for entry in group}
  return [
      r for r in benchmark_runs.read(path)
      if benchmark_runs.entry_of(r) in wanted
  ]


def rates(config, workdir):
  """Measures our methods alone, and writes their summary and figure.

  Args:
    config: see `configs/benchmark.py`.
    workdir: folder of the results; a second start resumes.

  Returns:
    Rows of `tables.rows`; and the parameters of target and draft.

  Raises:
    UserError: for settings that cannot be measured.
  """
  benchmark_runs.check(config, engines.ENGINES)
  methods = benchmark_runs.methods(config.methods)
  pair = systems.open_pair(config, workdir)
  models = systems.with_dtype(pair, config.dtypes[0])
  settings = {**json.loads(config.to_json()),
              "models": model_pair.fingerprint(models)}
  workdir = results_store.open_workdir(workdir, settings, FREE, timed=True)
  records = measure(config, pair, methods,
                    benchmark_runs.entries(config, methods, ()),
                    workdir / results_store.RESULTS)
  rows = benchmark_tables.rows(records)
  benchmark_tables.write(workdir, rows, systems.remarks(pair),
                         about=provenance.markdown({
                             **settings, "target": str(pair.target),
                             "draft": str(pair.draft)}))
  return rows, [transformer.num_params(params) for params in (
      models.target_params, models.draft_params)]
