"""Completes all prompts of a file by any method, a line of JSON for each text.

  python -m experiments.complete --prompts=prompts.jsonl \\
      --method="rsd_s(3, 4)" --temperature=0.6 --batch=16 --num_samples=4

A line of the file is a text, or an object with the field that `--field` names;
with `--chat` it may be a list of messages. Flags for models, method, sampling
and constraints as in `experiments.generate`. `--method=auto` measures
first, on the first prompts and `--batch` rows, and chooses the fastest method.

`results.jsonl` in the workdir has, for each text, `prompt` and `sample`,
numbers from 0 (blank lines are no prompts); `text`; `tokens`, their number;
`finish`: "stop" at a token that ends texts, or where `--stop` or a grammar lets
nothing else follow; "length" at the budget; or "too_long" for a prompt that
leaves no room for a text; `log_prob` by the target; `target_calls`; and with
`--top_log_probs=5` also `token_ids`, their `log_probs`, and in `top` the 5 most
probable tokens at each. `--check_exact` tests whether the texts are samples of
the target (`dj.testing.check_texts`). A run that is killed resumes where it
was; texts depend neither on that nor on the batch, but for samples of
`shared_budget`, whose rows share nodes.
"""

import pathlib

from absl import flags
import jax
import numpy as np

from decoding_jax import argument_checks
from decoding_jax.speculation import tree_decoder
from decoding_jax.testing import generated_texts
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import multihost
from experiments.app import own_code
from experiments.app import preemption
from experiments.app import text_tables
from experiments.data import prompt_tasks
from experiments.devices import mesh as mesh_lib
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import shared_prefix
from experiments.flags import constraint_flags
from experiments.flags import generation_flags
from experiments.flags import grammar_engine
from experiments.flags import model_flags
from experiments.flags import prompt_flags
from experiments.harness import batches
from experiments.harness import store
from experiments.timing import profile
from experiments.timing import stopwatch
from models.text import batching

# What `--method=auto` has chosen, for later starts, and from how many prompts.
_CHOSEN, _TRIED = "auto.json", 64
_PROMPTS = flags.DEFINE_string(
    "prompts", "", "File of prompts: .jsonl, .json with a list, or one prompt a"
    " line, each perhaps compressed (.gz); or hub:owner/name, a data set.")
_FIELD = flags.DEFINE_string(
    "field", "prompt", "Path of the prompt in a JSON object, its parts "
    "separated by dots.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/complete", "Folder of results.")
_BATCH = flags.DEFINE_integer("batch", 8, "Rows decoded together.",
                              lower_bound=1)
_QUEUE = flags.DEFINE_integer(
    "queue", 0, "Rows given to one program, which decodes --batch at a time "
    "(continuous batching); 0 gives it no more than --batch.",
    lower_bound=0)
_PREFILL_CHUNK = flags.DEFINE_integer(
    "prefill_chunk", None, "Of --queue: prompt tokens that a row which joins "
    "reads in a step of the others; 0 prefills rows while the others wait. "
    "Default: as many as a step scores nodes of a row, if these are five or "
    "more, else 0.",
    lower_bound=0)
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Texts per prompt.",
                                    lower_bound=1)
_TOP = flags.DEFINE_integer(
    "top_log_probs", 0, "Most probable tokens to record at each position: "
    "results then have token_ids, log_probs and top, pairs of a token and its "
    "log-probability by the target at temperature 1, nothing cut off.",
    lower_bound=0)
_CHECK = flags.DEFINE_bool(
    "check_exact", False, "Score each text again by plain forwards of the "
    "target, and test whether its tokens can be samples; the exit status is 2 "
    "if they cannot.")
_BUCKETS = flags.DEFINE_integer(
    "buckets", 4, "Most lengths that prompts are padded to; a program is "
    "compiled for each.",
    lower_bound=1)
# See `experiments.generate`.
for _module in (generation_flags, model_flags, mesh_lib, constraint_flags,
                prompt_flags, shared_prefix, profile):
  flags.adopt_module_key_flags(_module)


def main():
  if _PREFILL_CHUNK.value is not None and _QUEUE.value <= _BATCH.value:
    raise launch.UserError("--prefill_chunk needs a --queue of more than "
                           f"--batch={_BATCH.value}.")
  pair, methods = generation_flags.opened(_BATCH.value)
  preemption.listen()
  prompts = prompt_flags.load(
      _PROMPTS.value, _FIELD.value, pair.tokenizer, model_flags.TARGET.value,
      store.started_at(_WORKDIR.value))
  room = min(prompt_tasks.positions(
      pair, generation_flags.MAX_NEW_TOKENS.value, x) for x in methods)
  prompt_length = max((len(x) for x in prompts if len(x) <= room), default=1)
  for method in methods:
    model_pair.check(method, pair, prompt_length,
                     generation_flags.MAX_NEW_TOKENS.value,
                     generation_flags.sampling())
    with launch.user_errors(ValueError):
      argument_checks.check_top(_TOP.value, method, tree_decoder.decoder_of(
          method, not generation_flags.sampling().temperature), pair.target)
  size = max(_BATCH.value, _QUEUE.value)
  max_rows = batches.max_rows(
      _BATCH.value, len(prompts) * _NUM_SAMPLES.value, size > _BATCH.value)
  pair = loaded = generation_flags.load(pair, methods, _BATCH.value, max_rows,
                                        prompt_length)
  pair = shared_prefix.apply(pair)
  # Before the folder exists: settings refused here must not be recorded in it.
  pair = constraint_flags.apply(pair, prompt_length,
                                generation_flags.MAX_NEW_TOKENS.value)
  spec, method = None, methods[0]
  if generation_flags.METHOD.value == generation_flags.AUTO:
    spec = _chosen(pair, [x for x in prompts if len(x) <= room])
    method = method_specs.read(spec)
  workdir = store.open_workdir(_WORKDIR.value,
                               _settings(method, loaded, prompts))
  if spec:
    store.save(workdir / _CHOSEN, spec)
  records = complete(method, pair, prompts, room, size,
                     workdir / store.RESULTS)
  if multihost.first():
    print(_statistics(method, records, model_pair.device_text(pair.mesh)))
    print(f"{workdir}: {store.RESULTS}, {store.RUN}")
    if _CHECK.value:
      _test(method, records)
  fits = [(i, 0) for i, x in enumerate(prompts) if len(x) <= room]
  if profile.FOLDER.value and fits:
    batch, _ = next(_batches(prompts, fits, size, pair.mesh))
    profile.show({method.name: lambda: int(
        _generated(method, pair, batch).steps)})


def _chosen(pair, prompts):
  path = pathlib.Path(_WORKDIR.value) / _CHOSEN
  known = store.load(path)
  if known and (not isinstance(known, str) or own_code.module_of(known)):
    raise launch.UserError(f"'{path}': {known!r} is nothing that auto chooses.")
  if known or not prompts:
    return known or "autoregressive"
  texts = prompts[:max(_TRIED, _BATCH.value)]
  _, padded, lengths = batches.batch_of(
      jax.random.key(0), texts, np.arange(len(texts)), max(map(len, texts)))
  choice = generation_flags.choose(pair, padded, lengths, _BATCH.value)
  print(choice.report, flush=True)
  return choice.spec


def complete(method, pair, prompts, room, size, path):
  """Decodes what the results at `path` lack; returns all records.

  `room` is the most tokens of a prompt, `size` the rows of one program.
  """
  wanted = [(i, j) for i in range(len(prompts))
            for j in range(_NUM_SAMPLES.value)]
  # A line that is there twice, or is of no prompt, counts for nothing.
  done = {(r["prompt"], r["sample"]): r for r in store.read(
      path, "prompt", "sample", "finish", "tokens")
          if isinstance(r["prompt"], int) and isinstance(r["sample"], int)}
  records = [done[x] for x in wanted if x in done]
  todo = [x for x in wanted if x not in done]

  def keep(record):
    store.append(path, record)
    records.append(record)
    bar.update()

  with multihost.progress(len(wanted), "text", initial=len(records)) as bar:
    for i, j in todo:
      if len(prompts[i]) > room:
        keep({"prompt": i, "sample": j, "finish": "too_long", "text": "",
              "tokens": 0})
    todo = [(i, j) for i, j in todo if len(prompts[i]) <= room]
    for batch, places in _batches(prompts, todo, size, pair.mesh):
      # A batch that ends soon after SIGTERM is kept.
      with preemption.deferred():
        for record in _decoded(method, pair, batch, [todo[k] for k in places]):
          keep(record)
  return records


def _batches(prompts, todo, size, mesh):
  """Yields batches, and the places in `todo` of the rows new in each."""
  if not todo:
    return
  numbers = np.array([i * _NUM_SAMPLES.value + j for i, j in todo])
  texts = {number: prompts[i] for number, (i, _) in zip(numbers, todo)}
  seen = set()
  for batch, chosen in batches.arranged(
      jax.random.key(generation_flags.SEED.value), texts, numbers,
      _BUCKETS.value, size, mesh_shapes.multiple(mesh)):
    # Rows that only fill the last batch are at its end.
    new = [k for k in dict.fromkeys(chosen.tolist()) if k not in seen]
    seen.update(new)
    yield batch, new


def _decoded(method, pair, batch, rows):
  """Yields records of the first rows of a batch, named by `rows`."""
  _, _, lengths = batch
  out = _generated(method, pair, batch)
  texts = batching.decode(pair.tokenizer, out, lengths)
  written = [row[start:end] for row, start, end in zip(
      out.tokens, lengths, out.lengths)]
  ended = _ended(pair, written[:len(rows)])
  scores = _scores(pair, batch, out) if _CHECK.value else [{}] * len(rows)
  for k, (prompt, sample) in enumerate(rows):
    tokens = written[k]
    yield {"prompt": prompt, "sample": sample,
           "finish": "stop" if ended[k] else "length",
           "text": texts[k], "tokens": len(tokens),
           "log_prob": float(out.log_probs[k].sum()),
           "target_calls": int(out.stats.target_calls[k]), **scores[k],
           **(_top(out, k, lengths[k]) if _TOP.value else {})}


def _scores(pair, batch, out):
  """Returns a field of each text: the sums of `--check_exact`, by name."""
  _, prompts, lengths = batch
  scores = generated_texts.score(
      out, prompts, lengths, target=pair.target,
      target_params=pair.target_params, sampling=generation_flags.sampling())
  return [{_CHECK.name: dict(zip(scores._fields, map(float, row)))}
          for row in zip(*scores)]


def _test(method, records):
  """Prints whether texts can be samples of the target."""
  report = generated_texts.report(method.name, [
      np.array([r[_CHECK.name][name] for r in records if _CHECK.name in r])
      for name in generated_texts.Scores._fields])
  if not report.is_exact:
    raise launch.UserError(str(report))
  print(report)


def _generated(method, pair, batch):
  out, _ = stopwatch.decoded(lambda: mesh_lib.generate(
      pair, *batch, method=method,
      max_new_tokens=generation_flags.MAX_NEW_TOKENS.value,
      sampling=generation_flags.sampling(), eos_id=pair.eos_id,
      rows=_BATCH.value, prefill_chunk=_PREFILL_CHUNK.value, **_top_argument()))
  return jax.tree.map(np.asarray, out)


def _top_argument():
  """Returns `top_log_probs`, where it is wanted, by its name."""
  return {_TOP.name: _TOP.value} if _TOP.value else {}


def _top(out, row, start):
  """Returns the fields of `--top_log_probs`, an entry for each token."""
  at = row, slice(int(start), int(out.lengths[row]))
  return {"token_ids": out.tokens[at].tolist(),
          "log_probs": out.log_probs[at].tolist(),
          "top": [list(map(list, zip(*pair))) for pair in zip(
              out.top_tokens[at].tolist(), out.top_log_probs[at].tolist())]}


def _ended(pair, texts):
  """Returns which texts have ended by themselves, a list of bool."""
  ended = [len(x) > 0 and x[-1] in (pair.eos_id or ()) for x in texts]
  # Those at the budget are equally long; one may have no room for its end.
  rest = [k for k, end in enumerate(ended) if not end]
  if rest:
    _, must = grammar_engine.ends(pair, np.stack([texts[k] for k in rest]))
    for k, end in zip(rest, must):
      ended[k] = bool(end)
  return ended


def _settings(method, pair, prompts):
  return {
      "method": method.name, "models": model_pair.fingerprint(pair),
      "draft": model_flags.DRAFT.value,
      "prompts": prompt_tasks.fingerprint(prompt_tasks.Examples(prompts)),
      "num_samples": _NUM_SAMPLES.value, "eos_id": list(pair.eos_id or ()),
      **generation_flags.settings(), **constraint_flags.settings(),
      **_top_argument(), **({_CHECK.name: True} if _CHECK.value else {})}


def _statistics(method, records, device):
  written = [r for r in records if "target_calls" in r]
  ends = [sum(r["finish"] == end for r in records)
          for end in ("stop", "length", "too_long")]
  tokens = sum(r["tokens"] for r in written)
  calls = sum(r["target_calls"] for r in written)
  return (f"{method.name}: {text_tables.count(len(written), 'text')}, "
          f"{text_tables.count(tokens, 'token')}, block efficiency "
          f"{tokens / max(calls, 1):.2f}; finish: {ends[0]} stop, {ends[1]} "
          f"length, {ends[2]} too_long. Decoded on {device}.")


if __name__ == "__main__":
  launch.run(main)
