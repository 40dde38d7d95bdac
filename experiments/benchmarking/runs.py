"""Runs the entries of a benchmark: ours, theirs, ours, theirs, ...

An entry is a setting of a tool. Entries of one batch and temperature form a
group, which is measured in rounds: in each, every entry decodes the same
prompts once, ours and the rivals' in turn, so that drifts of the machine affect
all of them. Before its rounds an entry is called once, to compile.
"""

import itertools
import time
from typing import NamedTuple

import tqdm

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.evaluation import results_store
from experiments.rivals import engines
from models.transformer import quantization

OURS = "decoding_jax"
# Types of weights, and the classes in which systems are compared.
WEIGHTS = {"float32": "32 bits", "bfloat16": "16 bits", "int8": "8 bits",
           "int4": "4 bits"}
# Threads of a tool spin for a moment after its run; the next tool waits.
_PAUSE_SECONDS = 0.2


class Entry(NamedTuple):
  """A tool's setting to measure.

  Attributes:
    tool: `OURS`, or a key of `engines.ENGINES`.
    name: of the method or setting, sizes included.
    dtype: of weights, a key of `WEIGHTS`; activations of 8 bits and fewer are
      in 16 bits.
    batch: rows decoded together.
    temperature: of target and draft; 0 is greedy.
  """
  tool: str
  name: str
  dtype: str
  batch: int
  temperature: float


def entries(config, methods, tools):
  """Returns the groups of entries, ours and theirs in turn.

  Args:
    config: see `configs/benchmark.py`.
    methods: names of our methods.
    tools: rivals to run.

  Returns:
    list of lists of `Entry`.
  """
  groups = []
  for batch in config.batches:
    for temperature in config.temperatures:
      ours = [Entry(OURS, name, dtype, batch, temperature)
              for dtype in config.dtypes for name in methods]
      theirs = [Entry(tool, setting_name(setting), dtype, batch, temperature)
                for tool in tools for dtype in config.rival_dtypes
                if dtype in engines.ENGINES[tool].weights
                for setting in config.rivals[tool]
                if batch == 1 or not setting.get("batch_1")]
      turns = itertools.zip_longest(ours, theirs)
      groups.append([x for turn in turns for x in turn if x])
  return groups


def read(path):
  """The results of `measure` that there are."""
  return results_store.read(path, *Entry._fields, "round")


def setting_name(setting):
  """Returns the name of a rival's setting, such as "assisted(4)"."""
  return setting["name"] + (f"({setting['length']})"
                            if "length" in setting else "")


def measure(groups, rounds, run, path):
  """Measures the entries and rounds that have no result yet.

  Args:
    groups: of `entries`.
    rounds: measurements of each entry; round 0 is the first call.
    run: `(entry, round) -> JSON object`, with `error` if it failed.
    path: of the results, read and appended to.

  Returns:
    list of JSON objects: those of `run` with the entry's fields and `round`.
  """
  records = read(path)
  runs = todo(groups, rounds, records)
  failed, warm = set(), set()

  def take(entry, number):
    bar.set_description(f"{entry.tool} {entry.name} {entry.dtype}")
    time.sleep(_PAUSE_SECONDS)
    record = {**entry._asdict(), "round": number, **run(entry, number)}
    warm.add(entry)
    return record

  with tqdm.tqdm(total=len(runs), unit="run", smoothing=0,
                 dynamic_ncols=True) as bar:
    for entry, number in runs:
      if entry not in failed:
        if number and entry not in warm:
          take(entry, 0)  # Compiled by an earlier start, not by this one.
        record = take(entry, number)
        results_store.append(path, record)
        records.append(record)
        if "error" in record:
          failed.add(entry)
      bar.update()
  return records


def todo(groups, rounds, records):
  """Returns (entry, round) of each run that has no record yet, in order.

  Args:
    groups: of `entries`.
    rounds: of `measure`.
    records: of `measure`; failed runs are tried again.
  """
  done = {(entry_of(record), record["round"]) for record in records
          if "error" not in record}
  return [(entry, number) for group in groups for number in range(rounds + 1)
          for entry in group if (entry, number) not in done]


def entry_of(record):
  """Returns the `Entry` of a record of `measure`."""
  return Entry(*(record[name] for name in Entry._fields))


def methods(specs):
  """Returns our methods by name.

  Args:
    specs: names and sizes, see `method_specs.read`.

  Raises:
    UserError: for a method without a draft tree.
  """
  found = [method_specs.read(spec, "methods") for spec in specs]
  for method in found:
    if not isinstance(method.sampled, dj.Pair):
      raise launch.UserError(f"methods: {method.name} has no draft tree; only "
                             "methods with one are compared.")
  return {method.name: method for method in found}


def check(config, tools):
  """Raises `launch.UserError` for a config that cannot be measured."""
  launch.check_positive(config, "rounds", "prompt_length", "max_new_tokens")
  for name in ("batches", "temperatures", "dtypes", "rival_dtypes"):
    if not config[name]:
      raise launch.UserError(f"{name} is empty: one is needed.")
  for batch in config.batches:
    if batch < 1:
      raise launch.UserError(f"batches={tuple(config.batches)}: each is at "
                             "least 1.")
  drafts = [config.draft_dtype] if config.draft_dtype else []
  for name, dtypes, allowed in (
      ("dtypes", config.dtypes, _OUR_DTYPES), ("draft_dtype", drafts, _DTYPES),
      ("rival_dtypes", config.rival_dtypes, WEIGHTS)):
    for dtype in dtypes:
      if dtype not in allowed:
        raise launch.UserError(f"{name}: {dtype!r} is not one of "
                               f"{', '.join(allowed)}.")
  if config.draft_weights not in quantization.WEIGHTS:
    raise launch.UserError(f"draft_weights={config.draft_weights!r} is not one "
                           f"of {', '.join(quantization.WEIGHTS)}.")
  for tool in config.rivals:
    if tool not in tools:
      raise launch.UserError(f"rivals: {tool!r} is not one of "
                             f"{', '.join(tools)}.")


_DTYPES = ("float32", "bfloat16")
_OUR_DTYPES = (*_DTYPES, "int8")
