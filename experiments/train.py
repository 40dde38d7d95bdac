"""Trains or distils a model on Python source, text pairs or dialogues.

  python -m experiments.train --config=configs/train.py:target

A run that was killed resumes from its last checkpoint with the same command,
and ends with the parameters of an uninterrupted one. On SIGTERM it saves a
checkpoint and ends. With `--mesh=data:4,model:2` rows and layers are split over
devices, of one process or of several that see the same `--config.workdir`; a
run may resume on another mesh.
"""

import json
import math
import pathlib
import platform
import shlex
import sys
import time

from absl import flags
from absl import logging
import jax
import orbax.checkpoint as ocp

from experiments.app import compilation_cache
from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption
from experiments.devices import mesh as mesh_lib
from experiments.harness import checkpoint_files
from experiments.harness import store
from experiments.training import on_mesh
from experiments.training import run as training_run
from experiments.training import steps as training_steps
from models import transformer

# Steps from one question whether some other process is to stop to the next.
AGREED = 10
_METRICS, _SAVED = "metrics.jsonl", "checkpoints"
# Fields that may change from one start of a run to the next.
_FREE = ("checkpoint_every", "compilation_cache", "eval_every", "eval_windows",
         "export", "export_dtype", "export_weights", "log_every")


for _name in ("mesh", "draft_mesh", "coordinator", "num_processes",
              "process_id"):
  flags.declare_key_flag(_name)


def main():
  logging.set_verbosity(logging.WARNING)
  config = launch.config(CONFIG)
  with launch.user_errors(OSError, ValueError):
    training_run.check(config)
  learner = training_run.architecture(config)
  mesh_lib.connect(lambda: on_mesh.split_architecture(config, learner),
                   on_mesh.row_divisor(config))
  preemption.listen()
  if config.compilation_cache and config.workdir:
    compilation_cache.keep(
        pathlib.Path(config.workdir) / compilation_cache.FOLDER)
  mesh = on_mesh.of_flags(config, learner)
  train(config, mesh, on_mesh.learner_size(mesh, learner))


def train(config, mesh=None, size: int = 1) -> dict:
  """Trains, or resumes training, and exports the model."""
  # A layer of what is trained is split over `size` devices of "model". Returns
  # the metadata saved with the model: command, settings, metrics.
  with launch.user_errors(OSError, ValueError):
    training_run.check(config)
    multihost.check_shared(config.workdir, "--config.workdir")
    run = training_run.prepare(config, mesh, size)
  settings = json.loads(config.to_json())
  store.open_workdir(
      config.workdir,
      {**settings, "used_files": training_run.fingerprint(config, run)}, _FREE,
      "--config.workdir", results=(_METRICS, _SAVED, training_run.SAMPLES))
  evaluate = training_run.evaluator(run)
  state = _train(config, run, evaluate)
  params = training_steps.rounded(state.params, config.export_dtype)
  metadata = {
      **evaluate(params, sys.maxsize),
      "parameters": transformer.num_params(params),
      "steps": int(state.step),
      "command": shlex.join(["python", "-m", "experiments.train",
                             *sys.argv[1:]]),
      "config": settings,
      "python": platform.python_version(),
  }
  training_run.export(config, run, params, metadata)
  if multihost.first():
    print(f"{config.export}: {_line(metadata)}")
  return metadata


def _train(config, run, evaluate):
  """Makes the remaining steps; returns the last state."""
  state = training_run.first_state(config, run)
  options = ocp.CheckpointManagerOptions(
      max_to_keep=2, enable_async_checkpointing=False,
      cleanup_tmp_directories=True)
  folder = run.workdir / _SAVED
  checkpoint_files.set_damaged_aside(folder)
  with ocp.CheckpointManager(folder, options=options) as saved:
    state = _restored(saved, state, folder)
    _forget_after(int(state.step), run.workdir / _METRICS)
    for step, state in _steps(config, run, state, evaluate):
      saved.save(step, args=ocp.args.StandardSave(state))
      checkpoint_files.record(folder, step)
  return state


def _restored(saved, state, folder):
  """Returns the state of the last checkpoint, if any."""
  step = saved.latest_step()
  if step is None:
    return state
  abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
  try:
    return saved.restore(step, args=ocp.args.StandardRestore(abstract))
  except Exception as e:  # Of memory, JSON, files, compression or shapes.
    raise launch.UserError(
        f"'{folder / str(step)}' cannot be read, though its files are as they "
        f"were written: {e}. Moved elsewhere, it is left out, and its steps "
        "are made again.") from e


def _steps(config, run, state, evaluate):
  """Yields (step, state) whenever the state is to be saved."""
  update = training_run.updates(config, run)
  written = training_run.teacher_samples(config, run)
  start, clock, tokens, stops = int(state.step), time.monotonic(), 0, False
  with multihost.progress(config.steps, "step", initial=start) as bar, (
      preemption.defer_signals()):
    for step in range(start + 1, config.steps + 1):
      # Data and loss of a step depend on the number of updates before it.
      batch = run.data.train(step - 1, written)
      state, loss = update(step - 1, state, batch)
      tokens += batch.weights.size
      bar.update()
      logs, evaluates = (step % every == 0 for every in (
          config.log_every, config.eval_every))
      stops = multihost.any_stop_requested(step % AGREED == 0)
      saves = (stops or step % config.checkpoint_every == 0
               or step == config.steps)
      if (saves or logs) and not math.isfinite(loss):
        raise launch.UserError(
            f"step {step}: the loss is {float(loss)}. A lower --config."
            "learning_rate or --config.clip may help, in another "
            "--config.workdir.")
      if logs:
        # Reading the loss waits for the devices, so that the rate is true.
        shown = {"train_loss": float(loss), "tokens/s": round(
            tokens / (time.monotonic() - clock))}
        bar.set_postfix(shown)
      if evaluates:
        metrics = {**evaluate(state.params, config.eval_windows),
                   "train_loss": float(loss)}
        store.append(run.workdir / _METRICS, {"step": step, **metrics})
        if multihost.first():
          bar.write(f"step {step}: {_line(metrics)}")
      if saves:
        yield step, state
      if step == start + 1 or logs or evaluates or saves:
        # Of the steps that follow alone: no compilation, no evaluation.
        clock, tokens = time.monotonic(), 0
      if stops:
        break
  if stops:
    raise preemption.Stopped


def _forget_after(step, path):
  records = store.read(path, "step")
  if not multihost.first():
    return
  store.replace_text(path, "".join(
      json.dumps(record) + "\n" for record in records
      if record["step"] <= step))


def _line(metrics):
  return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()
                   if isinstance(value, float))


if __name__ == "__main__":
  CONFIG = launch.define_config("train:target", "train:target")
  launch.run(main)
