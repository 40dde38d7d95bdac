"""Tables of a benchmark: the cost of forwards by tokens and by cache size."""

import functools

import jax
import numpy as np

from decoding_jax.runtime import cache_growth
from decoding_jax.runtime import prefill
from experiments.benchmarking import runs as benchmark_runs
from experiments.benchmarking import systems
from experiments.benchmarking import tables as benchmark_tables
from experiments.evaluation import results_store
from experiments.timing import forward_cost
from experiments.timing import profile

FILE = "costs.json"
# Committed tokens, and slots of a cache for a short and for a long budget.
_LIVE, _SHORT, _LONG = 256, 512, 8192


def measured(config, pair, workdir):
  """Measures cost curves of both models, or reads them from the workdir.

  Args:
    config: see `configs/benchmark.py`; without `costs` nothing is measured.
    pair: of `systems.open_pair`.
    workdir: folder of results.

  Returns:
    JSON object: dtype -> `target` and `draft`, each a list of (tokens, median,
    least, most) in seconds; `capacity`, (slots, median seconds of a target's
    token) for a short budget, for a long one, and for a cache with all slots of
    the long one at once; and `draft_dtype`.
  """
  if not config.costs:
    return {}
  path = workdir / FILE
  known = results_store.load(path)
  for dtype in config.dtypes:
    if dtype not in known:
      known[dtype] = {"draft_dtype": pair.dtypes(dtype)[1],
                      **_measure(systems.with_dtype(pair, dtype))}
      results_store.save(path, known)
  return {dtype: known[dtype] for dtype in config.dtypes}


def _measure(models):
  found = {}
  for name, lm, params in (
      ("target", models.target, models.target_params),
      ("draft", models.draft, models.draft_params)):
    curve = forward_cost.measure(lm, params, 1, _LIVE, _SHORT)
    found[name] = [list(x) for x in zip(*curve)]
  full = prefill.capacity(_LIVE, _LONG - _LIVE)
  sizes = (_SHORT, cache_growth.initial_slots(_LIVE, full), full)
  timers = [
      forward_cost.timer(models.target, models.target_params, 1, _LIVE, slots,
                         1) for slots in sizes
  ]
  rounds = np.array(
      [[timer() for timer in timers] for _ in range(forward_cost.ROUNDS)])
  found["capacity"] = list(zip(sizes, np.median(rounds, axis=0).tolist()))
  return found


def of_steps(config, pair, methods, folder) -> str:
  """Profiles the steps of each method, from a profiler's trace.

  Args:
    config: see `configs/benchmark.py`; its first dtype, batch and temperature.
    pair: of `systems.open_pair`.
    methods: dict from names to our methods.
    folder: of traces and tables, with a folder per method.

  Returns:
    The tables.
  """
  texts, found = systems.prompts(config, pair), []
  for name in methods:
    # A trace does not distinguish programs of one name.
    jax.clear_caches()
    entry = benchmark_runs.Entry(benchmark_runs.OURS, name, config.dtypes[0],
                                 config.batches[0], config.temperatures[0])
    run = functools.partial(systems.ours, config, pair, methods, texts,
                            entry, 0)
    table = profile.profile(run, run()["steps"],
                            folder / name.replace("/", "-"))
    found.append(
        f"{name}, {entry.dtype}, "
        f"{benchmark_tables.title(entry.batch, entry.temperature).lower()}\n"
        f"{table}")
  return "\n\n".join(found)


def tables(known) -> list:
  """Returns the tables of `measured`, (title, lines) of each dtype."""
  return [(_title(dtype, of_dtype), _lines(of_dtype))
          for dtype, of_dtype in known.items()]


def remarks(known):
  """Returns a line for each dtype about the cost of a large budget."""
  found = []
  for dtype, of_dtype in known.items():
    (short, base), (first, seconds), (full, at_once) = of_dtype["capacity"]
    found.append(
        f"A token in {dtype} with {_LIVE} tokens cached, of a budget of "
        f"{_LONG}: {seconds / base:.2f} times that of a cache of {short} slots "
        f"(the cache has {first} by then; with {full} at once it would be "
        f"{at_once / base:.2f}).")
  return found


def _title(dtype, of_dtype):
  return (f"Forwards in {dtype}, of the draft in {of_dtype['draft_dtype']}, "
          f"one row, {_LIVE} tokens cached")


def _lines(of_dtype):
  lines = [["tokens", "target, ms", "of one", "draft, ms", "of one"]]
  for rows in zip(of_dtype["target"], of_dtype["draft"]):
    lines.append([str(rows[0][0])])
    for row, first in zip(rows, (of_dtype["target"][0], of_dtype["draft"][0])):
      middle, least, most = (f"{1e3 * x:.2f}" for x in row[1:])
      lines[-1] += [f"{middle} [{least}, {most}]", f"{row[1] / first[1]:.2f}"]
  return lines
