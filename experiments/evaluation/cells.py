"""Measures the cells of a run: each method at each temperature."""

import functools
import sys

import tqdm

from decoding_jax.speculation import tree_decoder
from experiments.app import multihost
from experiments.data import prompt_tasks
from experiments.devices import mesh_shapes
from experiments.evaluation import record_figures
from experiments.evaluation import results_store
from experiments.evaluation import run as evaluation_run


def measure(config, pair, methods, examples, path) -> list[dict]:
  """Runs the cells that have no result yet.

  Args:
    config: see `configs/rsd.py`.
    pair: a `ModelPair`.
    methods: list of methods, the baseline first.
    examples: of `prompt_tasks.load`.
    path: where results are read from and appended to.

  Returns:
    list of records, one per cell.
  """
  records = results_store.read(path, "method", "temperature", "emitted",
                               "metrics")
  done = {(r["method"], r["temperature"]) for r in records}
  todo = {}
  for method in methods:
    for temperature in dict.fromkeys(config.temperatures):
      if (method.name, temperature) not in done:
        todo.setdefault(method, []).append(temperature)
  # Compilation and runs take turns: the mean of all cells so far predicts what
  # is left, that of the last few does not.
  with tqdm.tqdm(total=sum(map(len, todo.values())), unit="cell", smoothing=0,
                 dynamic_ncols=True, disable=not multihost.first()) as bar:
    for method, seconds in _compiled(config, pair, methods[0], list(todo),
                                     examples, bar):
      for temperature in todo[method]:
        bar.set_description(f"{method.name} T={temperature:g}")
        record = _cell(config, pair, methods, examples, records, method,
                       temperature)
        record["compile_seconds"] = seconds[temperature == 0]
        results_store.append(path, record)
        records.append(record)
        bar.update()
  return records


def _compiled(config, pair, baseline, methods, examples, bar):
  """Compiles some methods at a time, after the baseline.

  Yields:
    (method, dict from whether it is greedy to the seconds of its first calls).
  """
  if not methods:
    return
  decoders = functools.partial(evaluation_run.decoder, config, pair,
                               examples.eos_id)
  shapes = evaluation_run.one_of_each_shape(_batches(config, pair, examples)[0])
  workers = evaluation_run.at_once(pair.mesh)
  if multihost.first():
    count = evaluation_run.num_programs({baseline, *methods},
                                        config.temperatures, shapes)
    bar.write(f"{count} programs to compile; how long that takes follows from "
              f"those of {baseline.name}, which are first.", file=sys.stderr)
  bar.set_description(f"warming up {baseline.name}")
  seconds = evaluation_run.warm_up([baseline], config.temperatures, decoders,
                                   shapes, workers)
  for i in range(0, len(methods), workers):
    group = methods[i:i + workers]
    count = evaluation_run.num_programs(
        [x for x in methods[i:] if x != baseline], config.temperatures, shapes)
    bar.set_description(
        f"warming up {', '.join(x.name for x in group)}: "
        f"{evaluation_run.compile_note(count, seconds, len(shapes), workers)}")
    # Later calls find a program compiled: the first seconds are kept.
    seconds = {**evaluation_run.warm_up(group, config.temperatures, decoders,
                                        shapes, workers), **seconds}
    for method in group:
      yield method, {greedy: x for (of, greedy), x in seconds.items()
                     if of == method}


def _cell(config, pair, methods, examples, records, method, temperature):
  """Returns the record of a method at a temperature, with its metrics."""
  # Lengths of the first texts of the temperature, those of the baseline.
  lengths = next((r["emitted"] for r in records
                  if r["temperature"] == temperature), None)
  batches, rows = _batches(config, pair, examples, lengths)
  decode, plain = (evaluation_run.decoder(config, pair, examples.eos_id, x,
                                          temperature)
                   for x in (method, methods[0]))
  record = _same(records, methods, method, temperature) or evaluation_run.run(
      method, decode, plain, batches, rows, config.batch,
      pair.tokenizer if examples.metrics else None, config.references)
  record = {**record, "method": method.name, "temperature": temperature}
  return {**record, "metrics": {
      **record_figures.of_record(record, pair.parameter_ratio),
      **prompt_tasks.score(examples, record.get("texts"), config.seed)}}


def _batches(config, pair, examples, lengths=None):
  return evaluation_run.make_batches(config, examples.prompts, lengths,
                                     mesh_shapes.multiple(pair.mesh))


def _same(records, methods, method, temperature):
  """Returns the record of a method that has the same program and texts.

  At temperature 0 that is one which differs in its verification alone.
  """
  decoder = functools.partial(tree_decoder.decoder_of,
                              greedy=temperature == 0)
  same = {x.name for x in methods if decoder(x) is decoder(method)}
  return next((r for r in records if r["method"] in same and
               r["temperature"] == temperature), None)
