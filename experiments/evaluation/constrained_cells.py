"""The cells of `experiments.cdsl`: each method on all examples of a task."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.harness import batches as batches_lib
from experiments.harness import cells
from experiments.scoring import intervals
from experiments.scoring import task_rewards
from experiments.scoring import text_metrics

# Fields of a method's spec that are sampling settings, and their defaults.
_SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
             "typical_p": 1.0}
_CALLS = ("target_calls", "draft_calls")


class Entry(NamedTuple):
  """A line of the table: its name, method, and how it samples."""
  label: str
  method: dj.Method
  sampling: dj.Sampling


GREEDY = Entry("greedy", method_specs.read("autoregressive"),
               dj.Sampling(temperature=0.0))


def entries(config) -> dict[str, Entry]:
  """Reads the methods of a config, by label; a wrong one is a `UserError`."""
  by_label = {}
  for spec in config.methods:
    if isinstance(spec, str):
      spec = {"label": spec, "name": spec}
    elif not hasattr(spec, "items"):
      raise launch.UserError(f"methods: {spec!r} is not a string or a mapping.")
    spec = dict(spec.items())
    label = spec.pop("label", None)
    if not label or label in by_label:
      raise launch.UserError(f"methods: label {label!r} is missing, or comes "
                             "twice.")
    sampling = {name: spec.pop(name, default)
                for name, default in _SAMPLING.items()}
    by_label[label] = Entry(label, method_specs.read(
        spec, f"methods, {label!r}"), dj.Sampling(**sampling))
  if not by_label:
    raise launch.UserError("methods is empty: one is needed.")
  return by_label


def measure(config, pair, task, entries_, path) -> list[dict]:
  """Measures what has no record yet; greedy decoding is the baseline."""
  params, batches = make_batches(config, task, pair)
  decode = functools.partial(decoder, config, pair, task, params)

  def warm_up(entry):
    # Counts need none.
    return (lambda: decode(entry)(batches[0])) if config.references else None

  def record(entry, _, seconds):
    timed = cells.timed(decode(entry), decode(GREEDY), batches,
                        config.references)
    counts = of_texts(task, batches, timed, pair.tokenizer)
    return {**counts, "first_seconds": seconds and round(seconds, 3),
            "metrics": figures(counts)}

  return cells.run([
      cells.Cell({"label": x.label, "spec": spec(x)},
                 functools.partial(record, x), x, warm_up(x))
      for x in entries_], path, "metrics", first={GREEDY: warm_up(GREEDY)},
      shapes=1)


def spec(entry) -> str:
  """Returns method and sampling settings of an entry, for its records."""
  sampling = entry.sampling
  return (f"{entry.method.name}, T={sampling.temperature:g}, "
          f"top_p={sampling.top_p:g}, top_k={sampling.top_k}, "
          f"min_p={sampling.min_p:g}, typical_p={sampling.typical_p:g}")


def make_batches(config, task, pair):
  """Returns the reward's parameters where the pair is, and batches.

  These are of one shape, the first rows fill the last: keys `[B]`, prompts
  `[B, P]`, lengths `[B]`, and constraints, a tree of `[B, ...]`, or None.
  """
  prompt_length = max(map(len, task.prompts))
  key = jax.random.key(config.seed)
  batches = [
      (*batches_lib.batch_of(key, task.prompts, rows, prompt_length),
       jax.tree.map(lambda x, rows=rows: x[rows], task.judge.constraints))
      for rows in batches_lib.row_numbers(len(task.prompts), config.batch,
                                          mesh_shapes.multiple(pair.mesh))]
  return mesh.on_all(pair.mesh, task.judge.params), batches


def decoder(config, pair, task, params, entry):
  """Returns a function from a batch to its `Generation`."""
  def decode(batch):
    *rows, constraints = batch
    return mesh.generate(
        pair, *rows, method=entry.method, max_new_tokens=config.max_new_tokens,
        sampling=entry.sampling, eos_id=task.eos_id, reward=task.judge.reward,
        reward_params=params, constraints=constraints)

  return decode


def of_texts(task, batches, timed, tokenizer) -> dict:
  """Returns figures and counts of each example, as JSON values.

  `seconds` are per example of each batch, `baseline_seconds` their mean by
  greedy decoding; without timings of it there are none.
  """
  size = len(batches[0][2])
  rows = [row for (_, _, starts, _), out in zip(batches, timed.outputs)
          for row in _rows(task, starts, out, tokenizer)][:len(task.prompts)]
  raw = [row.pop("text") for row in rows]
  texts = [text.strip() for text in raw]
  record = {name: [row[name] for row in rows] for name in rows[0]}
  if task.judge.second:
    prompts = [tokenizer.decode(prompt) for prompt in task.prompts]
    record["second"] = task.judge.second(raw, prompts).tolist()
  quality = {"bleu": text_metrics.bleu(texts, task.references),
             "rouge_l": text_metrics.rouge_l(texts, task.references),
             "distinct_2": text_metrics.distinct_2(texts)}
  record |= {k: v.round(4).tolist() for k, v in quality.items()}
  if timed.references:
    baseline = float(np.mean([seconds for _, seconds in timed.references]))
    record |= {"seconds": [x / size for x in timed.seconds],
               "baseline_seconds": baseline / size}
  return {**record, "texts": texts}


def _rows(task, starts, out, tokenizer):
  """Yields counts and text of each example of a batch."""
  out = jax.tree.map(np.asarray, out)
  stats = out.stats
  extra = lambda name, none: stats.extra.get(
      name, np.array([none] * len(out.lengths)))
  for i, (start, end) in enumerate(zip(starts, out.lengths)):
    reward = float(stats.extra["reward"][i])
    yield {
        "text": tokenizer.decode(out.tokens[i, start:end]),
        **{name: task_rewards.SCORES[name].of(reward)
           for name in task.judge.scores},
        "log_prob": float(out.log_probs[i].sum()),
        **{name: int(getattr(stats, name)[i]) for name in ("emitted", *_CALLS)},
        "reward_calls": int(extra("reward_calls", 0)[i]),
        "states": extra("states", [0] * 4)[i].tolist()}


def figures(record) -> dict[str, list]:
  """Computes [figure, low, high] with 95 % bootstrap intervals over examples.

  Of seconds they are over batches. Scores are scaled; calls are per committed
  token.
  """
  emitted = record["emitted"]
  ratio = lambda values, by=None: intervals.json_values(
      intervals.interval(values, by))
  share = lambda name, scale=1.0, by=None: ratio(
      scale * np.asarray(record[name], float), by)
  times = {}
  if "seconds" in record:
    seconds, greedy = record["seconds"], record["baseline_seconds"]
    times = {"seconds": ratio(seconds),
             "greedy_seconds": [greedy],
             "slowdown": ratio(seconds, np.full(len(seconds), greedy))}
  return {
      **{name: share(name, score.scale)
         for name, score in task_rewards.SCORES.items() if name in record},
      "log_prob": share("log_prob", by=emitted),
      "bleu": share("bleu"), "rouge_l": share("rouge_l"),
      "distinct_2": share("distinct_2"), **times,
      **{name: share(name, by=emitted) for name in (*_CALLS, "reward_calls")}}
