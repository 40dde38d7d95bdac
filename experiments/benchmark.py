"""This library against other tools, on the same weights, in one command.

  python -m experiments.benchmark --config=configs/benchmark.py
  python -m experiments.benchmark --config=configs/benchmark.py:smoke

Prints a table of all methods of ours and all settings of the others, measured
in turn. A run that was ended goes on where it was. What a tool that is missing
would have done is left out, and said.
"""

import functools
import json
import os
import pathlib

from absl import flags

from experiments import anatomy
from experiments import bounds
from experiments import choices
from experiments import compilations
from experiments import contest
from experiments import contestants
from experiments import launch
from experiments import results
from experiments import rivals
from experiments import roofline
from experiments import standings
from experiments import stopping

# These only choose what is measured, and how often.
_FREE = ("methods", "rivals", "dtypes", "rival_dtypes", "batches",
         "temperatures", "rounds", "compilation_cache", "pairs", "auto",
         "costs")


def main():
  # On a GPU JAX would keep most of the memory to itself.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  config = launch.config(CONFIG)
  contest.check(config, rivals.SERVERS)
  methods = contest.methods(config.methods)
  stopping.listen()
  workdir = pathlib.Path(WORKDIR.value)
  pair = contestants.open_pair(config, workdir)
  models = contestants.with_dtype(pair, pair.dtype)
  for method in methods.values():
    for temperature in config.temperatures:
      launch.check(method, models, config.prompt_length, config.max_new_tokens,
                   contestants.sampling(config, temperature))
  settings = {**json.loads(config.to_json()),
              "models": launch.fingerprint(models)}
  results.open_workdir(workdir, settings, _FREE)
  if config.compilation_cache:
    compilations.keep(workdir / compilations.FOLDER)
  tools, notes = _tools(config)
  known = anatomy.measured(config, pair, workdir)
  chosen = choices.of_config(config, pair, workdir)
  methods.update(choices.methods(chosen))
  groups = contest.entries(config, contest.methods(config.methods), tools,
                           {at: x["name"] for at, x in chosen.items()})
  path = workdir / results.RESULTS
  roof = bounds.measured(
      workdir, {x for dtype in (*config.dtypes, *config.rival_dtypes)
                for x in pair.dtypes(dtype)},
      bool(contest.todo(groups, config.rounds, contest.read(path))))
  records = measure(config, pair, methods, groups, path)
  rows = standings.rows(records, bounds.of_runs(roof, config, pair, methods))
  notes += [*contestants.remarks(pair), bounds.note(roof),
            *anatomy.remarks(known), *choices.remarks(chosen, rows)]
  standings.write(workdir, rows, notes, anatomy.markdown(known))
  print("\n\n".join(filter(None, [
      standings.terminal(rows, notes), anatomy.terminal(known)])))
  print(f"{workdir}: summary.md, {results.RESULTS}, {results.RUN}, *.png")
  if PROFILE.value:
    print(anatomy.of_steps(config, pair, contest.methods(config.methods),
                           pathlib.Path(PROFILE.value)))


def measure(config, pair, methods, groups, path):
  """Measures what has no result yet.

  Args:
    config: see `configs/benchmark.py`.
    pair: of `contestants.open_pair`.
    methods: dict from names to our methods.
    groups: of `contest.entries`.
    path: where results are read from and appended to.

  Returns:
    list of records of the entries of the config.
  """
  if contest.todo(groups, config.rounds, contest.read(path)):
    texts = contestants.prompts(config, pair)
    with contestants.servers(config, pair) as servers:
      ours = functools.partial(contestants.ours, config, pair, methods, texts)
      theirs = functools.partial(contestants.theirs, config, servers, texts)

      def run(entry, number):
        # Right before, since a machine that others use has its moments.
        bandwidth = round(roofline.bandwidth())
        take = ours if entry.tool == contest.OURS else theirs
        return {"bandwidth": bandwidth, **take(entry, number)}

      contest.measure(groups, config.rounds, run, path)
  wanted = {entry for group in groups for entry in group}
  return [r for r in contest.read(path) if contest.entry_of(r) in wanted]


def _tools(config):
  """The rivals that can run, and a line for each, why if one cannot."""
  tools, notes = [], []
  for tool in config.rivals:
    names = rivals.missing(tool)
    if names:
      notes.append(f"{tool} was left out: {', '.join(names)} is not installed "
                   f"({rivals.HINTS[tool]}).")
      print(notes[-1], flush=True)
    else:
      tools.append(tool)
      notes.append(f"{tool}: {rivals.versions(tool)}.")
  return tools, notes


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  CONFIG = launch.define_config(
      str(pathlib.Path(__file__).parents[1] / "configs" / "benchmark.py"),
      "File of settings, or file:preset.")
  WORKDIR = flags.DEFINE_string("workdir", "runs/benchmark",
                                "Folder of results.")
  PROFILE = flags.DEFINE_string(
      "profile", "", "Folder for a profiler's traces of our methods, and "
      "tables of where the time of a step goes; '' for none.")
  launch.run(main)
