"""Runs one cell of an experiment: a method at a temperature, on all prompts."""

import concurrent.futures

import jax
import numpy as np

from decoding_jax import kernels
from decoding_jax import metrics
import decoding_jax as dj
from decoding_jax.runtime import continuous_batching
from decoding_jax.speculation import tree
from experiments.data import length_buckets
from experiments.devices import mesh as mesh_lib
from experiments.scoring import intervals
from experiments.timing import stopwatch
from models.text import batching

# Timings of the baseline in a cell, at most.
REFERENCES = 6


def make_batches(config, prompts, expected=None, multiple=1):
  """Arranges prompts in batches of a few widths, each filled up to full size.

  The key of a row depends only on the number of its prompt, so that its text
  does not depend on the batch.

  A row that has finished waits for the others of its batch, so rows that are
  expected to be equally long share one. Without expectations, or with equal
  ones, rows stay in their order.

  Args:
    config: `batch`, `queue`, `buckets` and `seed`.
    prompts: tokens of each.
    expected: `[R]`, expected length of each text, in any unit; None: unknown.
    multiple: number that divides the rows of a batch.

  Returns:
    list of (keys `[B]`, prompts `[B, P]`, lengths `[B]`), sorted by P; the last
    of a P is filled with rows of its first. And `[R]`, the row of each
    prompt in their concatenation.
  """
  key = jax.random.key(config.seed)
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  batches, numbers = [], []
  for prompt_length, members in length_buckets.members(lengths, config.buckets):
    if expected is not None:
      members = members[np.argsort(np.take(expected, members), kind="stable")]
    for places in row_numbers(len(members), config.queue or config.batch,
                              multiple):
      rows = members[places]
      batches.append(batch_of(key, prompts, rows, prompt_length))
      numbers.append(rows)
  return batches, np.unique(np.concatenate(numbers), return_index=True)[1]


def batch_of(key, prompts, rows, prompt_length):
  """Returns a batch: keys `[B]`, prompts `[B, P]` of that P, lengths `[B]`."""
  lengths = np.array([len(prompts[row]) for row in rows], np.int32)
  padded = np.zeros((len(rows), prompt_length), np.int32)
  padded[np.arange(prompt_length) < lengths[:, None]] = np.concatenate(
      [prompts[row] for row in rows])
  return jax.vmap(jax.random.fold_in, (None, 0))(key, rows), padded, lengths


def one_of_each_shape(batches):
  """Returns the first batch of each shape: one program is compiled for each."""
  found = {}
  for batch in batches:
    found.setdefault(batch[1].shape, batch)
  return list(found.values())


def decoder(config, pair, eos_id, method, temperature):
  """Returns a function that decodes one batch of `make_batches`.

  Args:
    config: `max_new_tokens`, `batch`, `draft_temperature`, `top_p`, `top_k`,
      `min_p` and `typical_p`.
    pair: a `ModelPair`.
    eos_id: tokens that end a row; None: all outputs are equally long.
    method: a `dj.Method`.
    temperature: of the target, and of the draft if it has none of its own.

  Returns:
    `batch -> Generation`.
  """
  def decode(batch):
    keys, prompts, lengths = batch
    return mesh_lib.generate(
        pair, keys, prompts, lengths, method=method,
        max_new_tokens=config.max_new_tokens,
        sampling=sampling(config, temperature),
        draft_sampling=draft_sampling(config), eos_id=eos_id, rows=config.batch)

  return decode


def sampling(config, temperature):
  """Returns the sampling settings of a config at a temperature."""
  return dj.Sampling(temperature, config.top_k, config.top_p,
                     min_p=config.min_p, typical_p=config.typical_p)


def draft_sampling(config):
  """Returns the draft's sampling settings; None if they are the target's."""
  return (sampling(config, config.draft_temperature)
          if config.draft_temperature else None)


def max_rows(batch, prompts, queued):
  """Returns the most rows that have a cache at a time.

  Args:
    batch: rows decoded together.
    prompts: number of prompts.
    queued: whether a program gets more prompts than it decodes together.
  """
  count = min(batch, prompts)
  # New rows have caches of their own while they are prefilled.
  return count + (2 * continuous_batching.refilled(count) if queued else 0)


def row_numbers(count, batch, multiple=1):
  """Splits row numbers into batches of one size B, at most `batch`.

  Args:
    count: number of rows.
    batch: rows of a batch, a multiple of `multiple`.
    multiple: number that divides B.

  Returns:
    list of `[B]` arrays; the last one is filled with the first rows.
  """
  number = -(-count // batch)
  size = -(-count // (number * multiple)) * multiple
  return [np.arange(start, start + size) % count
          for start in range(0, number * size, size)]


def at_once(mesh):
  """Returns how many programs may be compiled and run at a time.

  On a mesh it is one. Devices wait for each other within a program: if two
  devices ran two programs in different orders, they would deadlock.
  """
  return kernels.cores() if mesh is None else 1


def warm_up(methods, temperatures, decoders, batches, workers):
  """Compiles and runs several methods at a time, each on a core of its own.

  All temperatures but 0 are one program.

  Args:
    methods: which to compile.
    temperatures: at which they will be run.
    decoders: `(method, temperature) -> (batch -> Generation)`.
    batches: one of each shape that they will be run on.
    workers: how many at a time, of `at_once`.

  Returns:
    dict from (method, whether greedy) to the seconds of the first calls, which
    are those of compilation but for one run each.
  """
  programs = {(m, t == 0): decoders(m, t) for m in methods
              for t in temperatures}
  pool = concurrent.futures.ThreadPoolExecutor(workers)
  try:
    seconds = pool.map(
        lambda f: sum(stopwatch.timed(f, batch)[1] for batch in batches),
        programs.values())
    return dict(zip(programs, seconds))
  finally:
    # A program that is to end does not wait for programs that run.
    pool.shutdown(wait=False, cancel_futures=True)


def num_programs(methods, temperatures, batches) -> int:
  """Returns how many programs `warm_up` compiles for these methods.

  Args:
    methods: different ones.
    temperatures: all but 0 are one program.
    batches: one of each shape.
  """
  kinds = {temperature == 0 for temperature in temperatures}
  return len(methods) * len(kinds) * len(batches)


def compile_note(left, seconds, shapes, workers) -> str:
  """Tells how many programs are left to compile, and for how long.

  Args:
    left: number of programs.
    seconds: of the first calls so far, as `warm_up` returns them.
    shapes: programs of each of these calls.
    workers: how many are compiled at a time.

  Returns:
    Such as "12 programs to compile, about 3 min".
  """
  each = np.mean(list(seconds.values())) / shapes
  return (f"{left} programs to compile, about "
          f"{max(1, round(each * left / workers / 60))} min")


def run(method, decode, baseline, batches, rows, size, tokenizer=None,
        most_references=REFERENCES):
  """Decodes all prompts with programs that are compiled already.

  Machines are noisy and drift: the baseline is timed in between, on a few
  batches spread over the cell.

  Args:
    method: a `dj.Method`.
    decode: `batch -> Generation`.
    baseline: `batch -> Generation` by autoregressive decoding.
    batches: of `make_batches`.
    rows: `[R]`, also of `make_batches`.
    size: rows decoded together, at most.
    tokenizer: adds texts to the record; None for none.
    most_references: timings of the baseline, at most.

  Returns:
    A record of counts and seconds, as JSON values: sums per prompt of
    `emitted`, `target_calls`, `draft_calls`, `nodes` and `log_prob`; per prompt
    `accepted_by_depth`; sums over prompts of the counts by rank; `seconds` per
    batch and `tokens` of each batch; `row_steps`, rows at a time of each batch
    times steps of its loop; `baseline_rate`, tokens per second. If each prompt
    is a batch, `prompt_seconds`; and if the baseline is timed on all of them,
    its `plain_tokens` and `plain_seconds` per prompt.
  """
  references, timings = [], []
  stride = -(-len(batches) // most_references)
  for i, batch in enumerate(batches):
    # In the middle of each stride, since the longest texts may come last.
    if i % stride == stride // 2:
      references.append(stopwatch.decoded(baseline, batch))
    timings.append(stopwatch.decoded(decode, batch))
  stats = [out.stats for out, _ in timings]
  stats = jax.tree.map(
      lambda *parts: np.concatenate(parts)[rows].astype(int), *stats)
  log_probs = [np.asarray(out.log_probs).sum(axis=1) for out, _ in timings]
  depth, nodes = _tree_size(method, stats)
  return {
      "method": method.name,
      "depth": depth,
      "tree_nodes": nodes,
      "emitted": stats.emitted.tolist(),
      "target_calls": stats.target_calls.tolist(),
      "draft_calls": stats.draft_calls.tolist(),
      "nodes": stats.nodes.tolist(),
      "log_prob": intervals.json_values(np.concatenate(log_probs)[rows]),
      "accepted_by_depth": stats.accepted_by_depth.tolist(),
      **{name: x.sum(0).tolist() for name, x in stats.extra.items()},
      "seconds": intervals.json_values([seconds for _, seconds in timings]),
      "tokens": [int(out.stats.emitted.sum()) for out, _ in timings],
      # A row's target calls are the steps that it took part in.
      "row_steps": [min(size, len(out.lengths)) * int(out.steps)
                    for out, _ in timings],
      "baseline_rate": metrics.token_rate(
          [int(out.stats.emitted.sum()) for out, _ in references],
          [seconds for _, seconds in references]),
      **_by_prompt(timings, references, rows),
      **({} if tokenizer is None else
         {"texts": _texts(batches, [out for out, _ in timings], rows,
                          tokenizer)}),
  }


def _by_prompt(timings, references, rows):
  """Returns tokens and seconds per prompt, where each prompt is a batch."""
  if any(len(out.lengths) > 1 for out, _ in timings):
    return {}
  seconds = lambda cell: intervals.json_values(
      [cell[row][1] for row in rows])
  found = {"prompt_seconds": seconds(timings)}
  if len(references) == len(timings):
    found["plain_seconds"] = seconds(references)
    found["plain_tokens"] = [int(references[row][0].stats.emitted.sum())
                             for row in rows]
  return found


def _texts(batches, outputs, rows, tokenizer):
  """Returns the text after each prompt, without special tokens."""
  found = [text for (_, _, starts), out in zip(batches, outputs)
           for text in batching.decode(tokenizer, out, starts)]
  return [found[row] for row in rows]


def _tree_size(method, stats):
  """Returns levels and nodes of a method's tree; without one, of a chain."""
  if isinstance(method.sampled, dj.Pair):
    layout = method.sampled.drafter.layout
    return tree.depth(layout), tree.num_nodes(layout)
  return (stats.accepted_by_depth.shape[1] - 1,) * 2
