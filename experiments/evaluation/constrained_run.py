"""Runs one method of constrained decoding on all examples of a task."""

from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.evaluation import run as evaluation_run
from experiments.scoring import intervals
from experiments.scoring import task_rewards
from experiments.scoring import text_metrics
from experiments.timing import stopwatch

# Fields of a method's spec that are sampling settings, and their defaults.
_SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
             "typical_p": 1.0}
COUNTS = ("emitted", "target_calls", "draft_calls")


class Entry(NamedTuple):
  """A line of the table.

  Attributes:
    label: its name.
    method: a `dj.Method`.
    sampling: settings that it samples with.
  """
  label: str
  method: dj.Method
  sampling: dj.Sampling


class Batch(NamedTuple):
  """Examples that are decoded together.

  Attributes:
    keys: `[B]`.
    prompts: `[B, P]` int32, right-padded.
    lengths: `[B]` int32.
    constraints: tree of `[B, ...]`, or None.
  """
  keys: Any
  prompts: np.ndarray
  lengths: np.ndarray
  constraints: Any


def entries(config, where="methods"):
  """Reads the methods of a config.

  Args:
    config: `methods`, see `configs/cdsl.py`.
    where: the name of that field, for errors.

  Returns:
    dict from label to `Entry`.

  Raises:
    UserError: for an unknown method, sizes it does not take, or a label that
      comes twice.
  """
  found = {}
  for spec in config.methods:
    spec = ({"label": spec, "name": spec} if isinstance(spec, str) else
            dict(spec))
    label = spec.pop("label", None)
    if not label or label in found:
      raise launch.UserError(f"{where}: label {label!r} is missing, or comes "
                             "twice.")
    sampling = {name: spec.pop(name, default)
                for name, default in _SAMPLING.items()}
    found[label] = Entry(label, method_specs.read(spec, f"{where}, {label!r}"),
                         dj.Sampling(**sampling))
  if not found:
    raise launch.UserError(f"{where} is empty: one is needed.")
  return found


def make_batches(config, task, pair, prompt_length=0):
  """Arranges examples in batches of one shape; the first rows fill the last.

  Args:
    config: `batch`, `max_new_tokens` and `seed`.
    task: a `Task`.
    pair: a `ModelPair`.
    prompt_length: tokens that prompts are padded to; 0: of the longest.

  Returns:
    The parameters of the reward where the pair is, and a list of `Batch`.
  """
  prompt_length = prompt_length or max(map(len, task.prompts))
  key = jax.random.key(config.seed)
  batches = []
  for rows in evaluation_run.row_numbers(len(task.prompts), config.batch,
                                         mesh_shapes.multiple(pair.mesh)):
    batches.append(Batch(
        *evaluation_run.batch_of(key, task.prompts, rows, prompt_length),
        jax.tree.map(lambda x, rows=rows: x[rows], task.judge.constraints)))
  return mesh.on_all(pair.mesh, task.judge.params), batches


def decoder(config, pair, task, params, entry):
  """Returns a function from a `Batch` to its `Generation`."""
  def decode(batch):
    return mesh.generate(
        pair, batch.keys, batch.prompts, batch.lengths, method=entry.method,
        max_new_tokens=config.max_new_tokens, sampling=entry.sampling,
        eos_id=task.eos_id, reward=task.judge.reward, reward_params=params,
        constraints=batch.constraints)

  return decode


def check(config, pair, task, entry):
  """Raises `UserError` if `dj.generate` would refuse a method."""
  model_pair.check(entry.method, pair, max(map(len, task.prompts)),
                   config.max_new_tokens, entry.sampling, task.judge.reward)


def run(decode, baseline, batches, task, tokenizer, bar):
  """Decodes all examples with programs that are compiled already.

  The baseline is timed in between, since machines drift.

  Args:
    decode: `Batch -> Generation`.
    baseline: `Batch -> Generation` by greedy decoding.
    batches: of `make_batches`.
    task: a `Task`.
    tokenizer: of the models.
    bar: a progress bar that is updated with each batch.

  Returns:
    A record of figures and counts of each example, as JSON values; `seconds`
    per example of each batch, and their mean by greedy decoding,
    `baseline_seconds`.
  """
  count = len(task.prompts)
  references, timings = [], []
  for i, batch in enumerate(batches):
    if i % -(-len(batches) // evaluation_run.REFERENCES) == 0:
      references.append(stopwatch.timed(baseline, batch)[1])
    timings.append(stopwatch.decoded(decode, batch))
    bar.update()
  size = len(batches[0].lengths)
  rows = [row for batch, (out, _) in zip(batches, timings)
          for row in _rows(task, batch, out, tokenizer)][:count]
  raw = [row.pop("text") for row in rows]
  texts = [text.strip() for text in raw]
  record = {name: [row[name] for row in rows] for name in rows[0]}
  if task.judge.second:
    prompts = [tokenizer.decode(prompt) for prompt in task.prompts]
    record["second"] = task.judge.second(raw, prompts).tolist()
  quality = {"bleu": text_metrics.bleu(texts, task.references),
             "rouge_l": text_metrics.rouge_l(texts, task.references),
             "distinct_2": text_metrics.distinct_2(texts)}
  return {**record, **{k: v.round(4).tolist() for k, v in quality.items()},
          "texts": texts, "seconds": [t / size for _, t in timings],
          "baseline_seconds": float(np.mean(references)) / size}


def _rows(task, batch, out, tokenizer):
  """Yields counts and text of each example of a batch."""
  out = jax.tree.map(np.asarray, out)
  stats = out.stats
  for i, (start, end) in enumerate(zip(batch.lengths, out.lengths)):
    reward = float(stats.extra["reward"][i])
    none = np.zeros(4, int)
    yield {
        "text": tokenizer.decode(out.tokens[i, start:end]),
        **{name: task_rewards.SCORES[name].of(reward)
           for name in task.judge.scores},
        "log_prob": float(out.log_probs[i].sum()),
        **{name: int(getattr(stats, name)[i]) for name in COUNTS},
        "reward_calls": int(stats.extra.get(
            "reward_calls", np.zeros(len(out.lengths)))[i]),
        "states": stats.extra.get("states", [none] * (i + 1))[i].tolist()}


def figures(record, seed=0):
  """Computes the reported figures of a record.

  Args:
    record: of `run`.
    seed: of the bootstrap.

  Returns:
    dict of [figure, low, high], with 95 % bootstrap intervals over examples, of
    seconds over batches. Scores are scaled; calls are per committed token.
  """
  ones = np.ones(len(record["emitted"]))
  emitted, seconds = record["emitted"], record["seconds"]
  batches = np.full(len(seconds), record["baseline_seconds"])
  ratio = lambda values, by: intervals.json_values(
      intervals.interval(values, by, seed))
  share = lambda name, scale=1.0, by=ones: ratio(
      scale * np.asarray(record[name], float), by)
  return {
      **{name: share(name, score.scale)
         for name, score in task_rewards.SCORES.items() if name in record},
      "log_prob": share("log_prob", by=emitted),
      "bleu": share("bleu"), "rouge_l": share("rouge_l"),
      "distinct_2": share("distinct_2"),
      "seconds": ratio(seconds, np.ones(len(seconds))),
      "slowdown": ratio(seconds, batches),
      **{name: share(name, by=emitted)
         for name in (*COUNTS[1:], "reward_calls")}}
