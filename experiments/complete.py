"""Completes all prompts of a file by any method, a line of JSON for each text.

  python -m experiments.complete --prompts=prompts.jsonl --method=rsd_s \\
      --width=3 --depth=4 --temperature=0.6 --batch=16 --num_samples=4

A line of the file is a text, or an object with the field that `--field`
names; with `--chat` it may be a list of messages. Models, method, law and what
a completion must be have the flags of `experiments.generate`.

`results.jsonl` in the workdir has, for each text, `prompt` and `sample`,
numbers from 0, blank lines being no prompts; `text`; `tokens`, how many it has;
`finish`: "stop", at a token that ends texts, "length", by the budget, or
"too_long": there was no room behind the prompt, and there is no text;
`log_prob` by the target; and `target_calls`. A run that is killed goes on where
it was; its texts depend neither on that nor on the batch.
"""

from absl import flags
import jax
import numpy as np
import tqdm

from experiments import asked
from experiments import buckets
from experiments import cells
from experiments import chosen
from experiments import compilations
from experiments import launch
from experiments import meshes
from experiments import processes
from experiments import processing
from experiments import questions
from experiments import results
from experiments import sizes
from experiments import stopping
from experiments import tasks
from experiments import wording

_WORKDIR = flags.DEFINE_string("workdir", "runs/complete", "Folder of results.")
_BATCH = flags.DEFINE_integer("batch", 8, "Rows decoded together.",
                              lower_bound=1)
_QUEUE = flags.DEFINE_integer(
    "queue", 0, "Rows of one program, of which --batch are decoded at a time: "
    "one that has finished makes room for the next; 0: no more than --batch.",
    lower_bound=0)
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Texts of each prompt.",
                                    lower_bound=1)
_BUCKETS = flags.DEFINE_integer(
    "buckets", 4, "Most lengths to which prompts are padded; each is compiled.",
    lower_bound=1)
# See `experiments.generate`.
for _module in (asked, chosen, meshes, processing, questions, sizes, wording):
  flags.adopt_module_key_flags(_module)


def main():
  method = launch.method({"name": asked.METHOD.value,
                          **sizes.of_flags(asked.METHOD.value)})
  meshes.join(chosen.TARGET.value, _BATCH.value)
  stopping.listen()
  pair = asked.open_pair([method])
  prompts = questions.load(pair.tokenizer, chosen.TARGET.value,
                           results.begun(_WORKDIR.value))
  room = tasks.positions(pair, asked.MAX_NEW_TOKENS.value)
  width = max((len(x) for x in prompts if len(x) <= room), default=1)
  launch.check(method, pair, width, asked.MAX_NEW_TOKENS.value,
               asked.sampling())
  size = max(_BATCH.value, _QUEUE.value)
  most = cells.most_rows(_BATCH.value, len(prompts) * _NUM_SAMPLES.value,
                         size > _BATCH.value)
  pair = asked.load(pair, [method], _BATCH.value, most, width)
  settings = _settings(method, pair, prompts)
  # What is refused here leaves no folder behind that would refuse the next.
  pair = processing.apply(pair, width, asked.MAX_NEW_TOKENS.value)
  workdir = results.open_workdir(_WORKDIR.value, settings)
  if asked.COMPILED.value:
    compilations.keep(asked.COMPILED.value)
  records = complete(method, pair, prompts, room, size,
                     workdir / results.RESULTS)
  if processes.first():
    print(_statistics(method, records))
    print(f"{workdir}: {results.RESULTS}, {results.RUN}")


def complete(method, pair, prompts, room, size, path):
  """Decodes what has no text yet.

  Args:
    method: what decodes.
    pair: a `ModelPair`.
    prompts: list of tokens of each.
    room: tokens of a prompt, at most.
    size: rows of one program.
    path: of the results, read and appended to.

  Returns:
    list of records, those of this start and of others.
  """
  records = results.read(path, "prompt", "sample", "finish")
  done = {(r["prompt"], r["sample"]) for r in records}
  samples = range(_NUM_SAMPLES.value)
  todo = [(i, j) for i in range(len(prompts)) for j in samples
          if (i, j) not in done]

  def keep(record):
    results.append(path, record)
    records.append(record)
    bar.update()

  with tqdm.tqdm(total=len(prompts) * len(samples), initial=len(records),
                 unit="text", dynamic_ncols=True,
                 disable=not processes.first()) as bar:
    for i, j in todo:
      if len(prompts[i]) > room:
        keep({"prompt": i, "sample": j, "finish": "too_long", "text": "",
              "tokens": 0})
    todo = [(i, j) for i, j in todo if len(prompts[i]) <= room]
    for batch, places in _batches(prompts, todo, size, pair.mesh):
      # A batch that is there soon after SIGTERM is kept.
      with stopping.deferred():
        for record in _decoded(method, pair, batch, [todo[k] for k in places]):
          keep(record)
  return records


def _batches(prompts, todo, size, mesh):
  """Batches, and the places in `todo` of those rows that are new in each."""
  if not todo:
    return
  numbers = np.array([i * _NUM_SAMPLES.value + j for i, j in todo])
  texts = {number: prompts[i] for number, (i, _) in zip(numbers, todo)}
  lengths = np.array([len(prompts[i]) for i, _ in todo])
  key, seen = jax.random.key(asked.SEED.value), set()
  for width, members in buckets.members(lengths, _BUCKETS.value):
    for places in cells.row_numbers(len(members), size, meshes.multiple(mesh)):
      chosen = members[places]
      # Rows that only fill the last batch stand at its end.
      new = [k for k in dict.fromkeys(chosen.tolist()) if k not in seen]
      seen.update(new)
      yield cells.batch_of(key, texts, numbers[chosen], width), new


def _decoded(method, pair, batch, rows):
  """Records of the first rows of a batch, so many as there are names."""
  keys, prompts, lengths = batch
  out, _ = launch.decoded(lambda: meshes.generate(
      pair, keys, prompts, lengths, method=method,
      max_new_tokens=asked.MAX_NEW_TOKENS.value, sampling=asked.sampling(),
      eos_id=pair.eos_id, rows=_BATCH.value))
  out = jax.tree.map(np.asarray, out)
  for k, (prompt, sample) in enumerate(rows):
    tokens = out.tokens[k, lengths[k]:out.lengths[k]]
    ended = len(tokens) and tokens[-1] in (pair.eos_id or ())
    yield {"prompt": prompt, "sample": sample,
           "finish": "stop" if ended else "length",
           "text": pair.tokenizer.decode(tokens), "tokens": len(tokens),
           "log_prob": float(out.log_probs[k].sum()),
           "target_calls": int(out.stats.target_calls[k])}


def _settings(method, pair, prompts):
  """All that texts depend on."""
  law = asked.sampling()
  return {"method": method.name, "models": launch.fingerprint(pair),
          "prompts": tasks.fingerprint(tasks.Examples(prompts)),
          "temperature": law.temperature,
          "top_p": law.top_p, "top_k": law.top_k, "min_p": law.min_p,
          "max_new_tokens": asked.MAX_NEW_TOKENS.value,
          "seed": asked.SEED.value, "num_samples": _NUM_SAMPLES.value,
          **processing.settings()}


def _statistics(method, records):
  """What there is, in one line."""
  written = [r for r in records if "target_calls" in r]
  ends = [sum(r["finish"] == end for r in records)
          for end in ("stop", "length", "too_long")]
  tokens = sum(r["tokens"] for r in written)
  calls = sum(r["target_calls"] for r in written)
  return (f"{method.name}: {len(written)} texts, {tokens} tokens, block "
          f"efficiency {tokens / max(calls, 1):.2f}; {ends[0]} stopped by "
          f"themselves, {ends[1]} by --max_new_tokens, {ends[2]} prompts were "
          "too long.")


if __name__ == "__main__":
  launch.run(main)
