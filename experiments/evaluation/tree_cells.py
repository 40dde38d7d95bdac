"""The cells of `experiments.rsd`: each method at each temperature."""

import functools

import jax
import numpy as np

from decoding_jax import metrics
import decoding_jax as dj
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_decoder
from experiments.data import prompt_tasks
from experiments.devices import mesh
from experiments.devices import mesh_shapes
from experiments.evaluation import tree_figures
from experiments.harness import batches as batches_lib
from experiments.harness import cells
from experiments.scoring import intervals
from experiments.timing import profile
from models.text import batching


def measure(config, pair, methods, examples, path) -> list[dict]:
  """Measures what has no record yet; the baseline is the first of the methods.

  A method is compiled once for temperature 0 and once for all others.
  """
  make_batches = functools.partial(batches_lib.make, config, examples.prompts,
                                   multiple=mesh_shapes.multiple(pair.mesh))
  shapes = batches_lib.one_of_each_shape(make_batches()[0])
  decode = functools.partial(decoder, config, pair, examples.eos_id)
  tokenizer = pair.tokenizer if examples.metrics else None

  def warm_up(method, temperature):
    run = lambda: list(map(decode(method, temperature), shapes))
    return run if config.references else None  # Counts need none.

  def record(method, temperature, records, seconds):
    known = [r for r in records if r["temperature"] == temperature]
    # Lengths of the baseline's texts, the first of the temperature.
    batches, rows = make_batches(expected=known[0]["emitted"] if known else
                                 None)
    result = _same(known, methods, method, temperature)
    if result is None:
      timed = cells.timed(decode(method, temperature),
                          decode(methods[0], temperature), batches,
                          config.references)
      result = counts(method, timed, rows, config.batch)
      if tokenizer is not None:
        texts = [text for (_, _, starts), out in zip(batches, timed.outputs)
                 for text in batching.decode(tokenizer, out, starts)]
        result["texts"] = [texts[row] for row in rows]
    return {**result, "method": method.name, "temperature": temperature,
            "compile_seconds": seconds, "metrics": {
                **tree_figures.of_record(result, pair.parameter_ratio),
                **prompt_tasks.score(examples, result.get("texts"),
                                     config.seed)}}

  temperatures = dict.fromkeys(config.temperatures)
  return cells.run(
      [cells.Cell({"method": method.name, "temperature": t},
                  functools.partial(record, method, t), (method, t == 0),
                  warm_up(method, t))
       for method in methods for t in temperatures],
      path, "emitted", "metrics", workers=cells.at_once(pair.mesh),
      shapes=len(shapes),
      first={(methods[0], t == 0): warm_up(methods[0], t)
             for t in temperatures})


def show_profiles(config, pair, methods, examples):
  """Profiles each method on the first batch at the first temperature."""
  batch = batches_lib.make(config, examples.prompts,
                           multiple=mesh_shapes.multiple(pair.mesh))[0][0]
  profile.show({method.name: lambda run=decoder(
      config, pair, examples.eos_id, method,
      config.temperatures[0]): int(run(batch).steps) for method in methods})


def decoder(config, pair, eos_id, method, temperature):
  """Returns `batch of batches.make -> Generation`."""
  def decode(batch):
    keys, prompts, lengths = batch
    return mesh.generate(
        pair, keys, prompts, lengths, method=method,
        max_new_tokens=config.max_new_tokens,
        sampling=sampling(config, temperature),
        draft_sampling=sampling(config, config.draft_temperature)
        if config.draft_temperature else None,
        eos_id=eos_id, rows=config.batch)

  return decode


def sampling(config, temperature) -> dj.Sampling:
  """Returns the sampling settings of a config at a temperature."""
  return dj.Sampling(temperature, config.top_k, config.top_p,
                     min_p=config.min_p, typical_p=config.typical_p)


def counts(method, timed, rows, size) -> dict:
  """Returns the counts and seconds of a cell, as JSON values.

  Counts are of each prompt (extra ones of all together); `seconds`, `tokens`,
  `row_steps` of each batch; `baseline_rate` is in tokens a second. `rows` `[R]`
  are of `batches.make`, `size` rows at most are decoded together.
  """
  stats = [out.stats for out in timed.outputs]
  stats = jax.tree.map(
      lambda *parts: np.concatenate(parts)[rows].astype(int), *stats)
  log_probs = [np.asarray(out.log_probs).sum(axis=1) for out in timed.outputs]
  depth, nodes = _tree_size(method, stats)
  return {
      "depth": depth, "tree_nodes": nodes,
      **{name: getattr(stats, name).tolist() for name in (
          "emitted", "target_calls", "draft_calls", "nodes")},
      "log_prob": intervals.json_values(np.concatenate(log_probs)[rows]),
      "accepted_by_depth": stats.accepted_by_depth.tolist(),
      **{name: x.sum(0).tolist() for name, x in stats.extra.items()},
      # A row's target calls are the steps that it took part in.
      "row_steps": [min(size, len(out.lengths)) * int(out.steps)
                    for out in timed.outputs],
      **(_rates(timed, rows) if timed.references else {})}


def _rates(timed, rows):
  tokens = lambda outs: [int(out.stats.emitted.sum()) for out in outs]
  return {"seconds": intervals.json_values(timed.seconds),
          "tokens": tokens(timed.outputs),
          "baseline_rate": metrics.token_rate(
              tokens(out for out, _ in timed.references),
              [seconds for _, seconds in timed.references]),
          **_by_prompt(timed, rows)}


def _by_prompt(timed, rows):
  """Returns seconds of each prompt, where each is a batch, and plain ones."""
  if any(len(out.lengths) > 1 for out in timed.outputs):
    return {}
  values = {"prompt_seconds": [timed.seconds[row] for row in rows]}
  if len(timed.references) == len(timed.outputs):
    plain = [timed.references[row] for row in rows]
    values["plain_seconds"] = [seconds for _, seconds in plain]
    values["plain_tokens"] = [int(out.stats.emitted.sum()) for out, _ in plain]
  return {name: intervals.json_values(x) if name.endswith("seconds") else x
          for name, x in values.items()}


def _same(records, methods, method, temperature):
  """Returns the counts of a method that has the same program and texts.

  At temperature 0 that is one which differs in its verification alone.
  """
  decoder_of = functools.partial(tree_decoder.decoder_of,
                                 greedy=temperature == 0)
  same = {x.name for x in methods if decoder_of(x) is decoder_of(method)}
  return next(({k: v for k, v in r.items() if k != "metrics"} for r in records
               if r["method"] in same), None)


def _tree_size(method, stats):
  """Returns levels and nodes of a method's tree; without one, of a chain."""
  if isinstance(method.sampled, dj.Pair):
    layout = method.sampled.drafter.layout
    return tree.depth(layout), tree.num_nodes(layout)
  return (stats.accepted_by_depth.shape[1] - 1,) * 2
