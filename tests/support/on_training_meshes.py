"""Trains on meshes of eight devices, and counts what these exchange.

Run by `test_train_meshes` with a folder and runs such as "medusa" and
"medusa:4x2/1": one of `KINDS` on one device; and on a mesh, there over how many
devices of "model" it is split. Prints JSON, a dict from runs to their metrics,
and the numbers in results of each collective of an update.
"""

import collections
import dataclasses
import json
import math
import pathlib
import re
import sys

import jax
import numpy as np

from configs import train as configs
from experiments import train
from experiments.devices import mesh_shapes
from experiments.training import (
    on_mesh, run as training_run, steps as training_steps)
from models import checkpoints
from models.text import tokenizers
from support import tiny_models as tiny

STEPS = 4
_TEACHER = dict(preset="", sizes=dict(dim=8, num_layers=1, num_heads=2),
                teacher="{}/target")
KINDS = {
    "plain": dict(preset="", sizes=dict(
        vocab_size=264, dim=16, num_layers=1, num_heads=2, max_length=64)),
    "distilled": dict(_TEACHER, sample_fraction=0.5, sample_rows=10,
                      sample_length=20, sample_prompt=12, sample_batch=8),
    "medusa": dict(_TEACHER, head="medusa", head_depth=2),
    # On texts and features of the target, which are kept.
    "own texts": dict(_TEACHER, head="medusa", head_depth=2,
                      prompts="{}/prompts.txt", keep_features=True,
                      sample_length=25, sample_batch=8, windows=(24,),
                      batch_tokens=192),
    # Its loss has distances of features, too.
    "fspad": dict(_TEACHER, head="fspad", head_depth=2),
}
_COLLECTIVE = re.compile(r" = (.*?) (all-gather|all-reduce|all-to-all|"
                         r"collective-\w+|reduce-scatter)(?:-start)?\(")


def save(folder):
  """Writes a corpus, prompts, and a target of four heads."""
  (folder / "corpus").mkdir()
  for i in range(40):
    lines = [f"value_{i}_{j} = {i * j} + value_{j}" for j in range(20)]
    (folder / "corpus" / f"module_{i}.py").write_text("\n".join(lines) + "\n")
  (folder / "prompts.txt").write_text("\n".join(
      f"a cat {i}" for i in range(32)))
  config = dataclasses.replace(tiny.LLAMA, vocab_size=264, max_length=64)
  checkpoints.save(folder / "target", config, tiny.random_model(config).params,
                   tokenizers.train(["a b c"], 264))


def config_of(folder, kind, name):
  """Settings of a run in a folder of its own; five rows are held out last."""
  config = configs.get_config("smoke")
  fields = {name: value.format(folder) if isinstance(value, str) else value
            for name, value in KINDS[kind].items()}
  config.update({**dict(
      corpus=str(folder / "corpus"), tokenizer=str(folder / "target"),
      workdir=str(folder / name / "work"), export=str(folder / name / "export"),
      steps=STEPS, warmup_steps=1, windows=(16,), batch_tokens=128,
      eval_every=2, eval_windows=13, checkpoint_every=2,
      compilation_cache=False), **fields})
  return config


def metrics(workdir):
  """Returns the metrics of a run, by step."""
  lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def exchanged(config, mesh, size):
  """Returns numbers of collectives in an update, and of its parameters."""
  run = training_run.prepare(config, mesh, size)
  state = training_run.first_state(config, run)
  batch = on_mesh.put_rows(mesh, run.data.train(0, np.zeros((9, 20), np.int32)))
  steps, make = [], training_steps.make_step
  training_steps.make_step = lambda *args: steps.append(make(*args))
  training_run.updates(config, run)
  training_steps.make_step = make
  extra = () if run.teacher is None else (run.teacher_params,)
  program = steps[0].lower(state, batch, *extra).compile().as_text()
  counts = collections.Counter()
  for shapes, kind in _COLLECTIVE.findall(program):
    counts[kind] += sum(math.prod(map(int, filter(None, x.split(","))))
                        for x in re.findall(r"\[([\d,]*)\]", shapes))
  leaves = jax.tree.leaves(state.params)
  return {**counts, "parameters": sum(x.size for x in leaves),
          "on a device": sum(x.addressable_shards[0].data.size for x in leaves),
          "state on a device": sum(x.addressable_shards[0].data.size
                                   for x in jax.tree.leaves(state))}


def main(folder, names):
  save(folder)
  results = {}
  for name in names:
    kind, _, mesh = name.partition(":")
    config, where = config_of(folder, kind, re.sub("[:/]", "-", name)), ()
    if mesh:
      data, model, size = map(int, re.split("[x/]", mesh))
      where = mesh_shapes.make((data, model)), size
    train.train(config, *where)
    results[name] = {"metrics": metrics(config.workdir)}
    if mesh:
      results[name]["exchanged"] = exchanged(config, *where)
  print(json.dumps(results))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]), sys.argv[2:])
