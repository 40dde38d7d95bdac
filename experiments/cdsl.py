"""Measures coverage, quality and cost of methods of constrained decoding.

  python -m experiments.cdsl --config=configs/cdsl.py
  python -m experiments.cdsl --config=configs/cdsl.py:commongen \\
      --config.corpus=<folder> --workdir=runs/commongen

Greedy decoding is timed again in the course of each method, and the method's
time is relative to that: machines are noisy and drift.
"""

import functools
import json
import sys

from absl import flags
import tqdm

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import multihost
from experiments.app import preemption
from experiments.data import constrained_tasks
from experiments.data import constraint_prompts
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.evaluation import constrained_run
from experiments.evaluation import constrained_tables
from experiments.evaluation import provenance
from experiments.evaluation import results_store
from experiments.flags import share_prefix_flag
from experiments.scoring import task_rewards
from experiments.timing import stopwatch

# These only choose lines; a line does not depend on the others.
_FREE = ("methods", "compilation_cache")
_BASELINE = constrained_run.Entry(
    "greedy", method_specs.read({"name": "autoregressive"}),
    dj.Sampling(temperature=0.0))

# --help shows flags of a main alone, and of modules that it adopts.
flags.adopt_module_key_flags(mesh)
flags.adopt_module_key_flags(share_prefix_flag)


def main():
  config = launch.config(CONFIG, "concepts")
  entries = constrained_run.entries(config)
  launch.check_positive(config, "batch")
  mesh.join(config.target, config.batch)
  preemption.listen()
  pair = model_pair.open_pair(config.target, config.draft, config.dtype,
                              config.draft_dtype, config.weights,
                              config.draft_weights)
  task = constrained_tasks.load(config, pair)
  warning = constraint_prompts.advice(config)
  if warning and multihost.first():
    print(warning, file=sys.stderr)
  for entry in entries.values():
    constrained_run.check(config, pair, task, entry)
  prompt_length = max(map(len, task.prompts))
  pair = mesh.load(pair, [
      kind for entry in (_BASELINE, *entries.values())
      for kind in launch.decoders([entry.method], [entry.sampling.temperature])
  ], config.batch, min(config.batch, config.examples), prompt_length,
                   config.max_new_tokens)
  pair = share_prefix_flag.apply(pair, task.prompts)
  if config.reward_on_host and pair.mesh is not None:
    raise launch.UserError("--config.reward_on_host=True needs a single device,"
                           f" and the mesh is {mesh_shapes.text(pair.mesh)}.")
  used = settings(config, pair, task)
  workdir = results_store.open_workdir(
      WORKDIR.value, used, _FREE, timed=True, compiled=config.compilation_cache)

  params, batches = constrained_run.make_batches(config, task, pair,
                                                 prompt_length)
  decode = functools.partial(constrained_run.decoder, config, pair, task,
                             params)
  records = measure(entries, decode, batches, task, pair.tokenizer,
                    workdir / results_store.RESULTS)
  if not multihost.first():
    return
  constrained_tables.write(workdir, records, config, provenance.markdown(used))
  print(constrained_tables.terminal(records))
  costs = task_rewards.host_costs(task.judge)
  if costs:
    print(costs)
  print(
      f"{workdir}: summary.md, {results_store.RESULTS}, {results_store.RUN}, "
      "*.png"
  )


def settings(config, pair, task):
  """Returns all that results depend on, as JSON values.

  Args:
    config: see `configs/cdsl.py`.
    pair: a `ModelPair` with parameters.
    task: a `Task`; its digest shows changes of its files.
  """
  return {**json.loads(config.to_json()),
          "models": model_pair.fingerprint(pair, task.judge.params,
                                           task.judge.host_params),
          "dtypes": model_pair.types(pair),
          "mesh": mesh_shapes.text(pair.mesh),
          "shared_tokens": pair.share,
          "used_examples": constrained_tasks.fingerprint(task)}


def measure(entries, decode, batches, task, tokenizer, path):
  """Runs the methods that have no result yet.

  Args:
    entries: dict from label to `Entry`.
    decode: `Entry -> (Batch -> Generation)`.
    batches: of `constrained_run.make_batches`.
    task: a `Task`.
    tokenizer: of the models.
    path: where results are read from and appended to.

  Returns:
    list of records, one per entry, in their order.
  """
  found = {(r["label"], r["spec"]): r for r in results_store.read(
      path, "label", "spec", "metrics")}
  todo = [e for e in entries.values() if (e.label, _spec(e)) not in found]
  with tqdm.tqdm(total=len(todo) * len(batches), unit="batch",
                 dynamic_ncols=True, disable=not multihost.first()) as bar:
    if todo:
      bar.set_description("warming up greedy")
      stopwatch.timed(decode(_BASELINE), batches[0])
    for entry in todo:
      bar.set_description(f"warming up {entry.label}")
      _, first = stopwatch.timed(decode(entry), batches[0])
      bar.set_description(entry.label)
      record = constrained_run.run(
          decode(entry), decode(_BASELINE), batches, task, tokenizer, bar)
      record = {"label": entry.label, "spec": _spec(entry), **record,
                "first_seconds": round(first, 3)}
      record["metrics"] = constrained_run.figures(record)
      results_store.append(path, record)
      found[entry.label, _spec(entry)] = record
  return [found[e.label, _spec(e)] for e in entries.values()]


def _spec(entry):
  sampling = entry.sampling
  return (f"{entry.method.name}, T={sampling.temperature:g}, "
          f"top_p={sampling.top_p:g}, top_k={sampling.top_k}, "
          f"min_p={sampling.min_p:g}, typical_p={sampling.typical_p:g}")


# Flags are defined where they are parsed: programs have flags of the same name,
# and a process may import several programs.
if __name__ == "__main__":
  CONFIG = launch.define_config("cdsl", "cdsl:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/cdsl", "Folder of results.")
  launch.run(main)
