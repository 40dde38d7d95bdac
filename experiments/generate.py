"""Completes a prompt with any method, and tells what it took.

  python -m experiments.generate --prompt="def main(" --method=rsd_s \\
      --width=3 --depth=4 --temperature=0.6

Prints the text, then one line of statistics. `--method=auto` measures first, on
this prompt, and takes the method and the tree that are fastest.
`--regex`, `--json_schema` and `--stop` say what the completion must be;
`--stream` shows it while it grows. `--chat` makes the prompt what a user says:

  python -m experiments.generate --prompt="What is a rainbow?" --chat \\
      --target=hub:HuggingFaceTB/SmolLM2-1.7B-Instruct \\
      --draft=hub:HuggingFaceTB/SmolLM2-135M-Instruct
"""

import functools

from absl import flags
import jax
import numpy as np

from decoding_jax import metrics
from experiments import asked
from experiments import auto
from experiments import chosen
from experiments import compilations
from experiments import launch
from experiments import meshes
from experiments import processes
from experiments import processing
from experiments import profiles
from experiments import remarks
from experiments import sizes
from experiments import streams
from experiments import turns
from experiments import wording

_AUTO = "auto"
_PROFILE = flags.DEFINE_string(
    "profile", "", "Folder for a profiler's trace, and a table of where the "
    "time of a step goes; '' for none.")
# --help shows flags of a main alone, and of modules that it adopts.
for _module in (asked, chosen, meshes, processing, sizes, streams, turns,
                wording):
  flags.adopt_module_key_flags(_module)


def _methods():
  name = asked.METHOD.value
  if name == _AUTO:
    sizes.check_none(_AUTO)
    return auto.methods()
  return [launch.method({"name": name, **sizes.of_flags(name, [_AUTO])})]


def main():
  methods = _methods()
  meshes.join(chosen.TARGET.value, 1)
  sampling, budget = asked.sampling(), asked.MAX_NEW_TOKENS.value
  pair = asked.open_pair(methods)
  prompt = turns.encode(pair.tokenizer, chosen.TARGET.value)
  for method in methods:
    launch.check(method, pair, len(prompt), budget, sampling)
  streams.check(methods, sampling)
  pair = asked.load(pair, methods, 1, 1, len(prompt))
  pair = processing.apply(pair, len(prompt), budget)
  if asked.COMPILED.value:
    compilations.keep(asked.COMPILED.value)
  prompts, lengths = np.array([prompt], np.int32), np.array([len(prompt)])
  method = methods[0]
  if asked.METHOD.value == _AUTO:
    choice = auto.choose(pair, prompts, lengths, budget, sampling)
    method = choice.method
  keys = jax.random.fold_in(jax.random.key(asked.SEED.value), 0)[None]
  arguments = dict(method=method, max_new_tokens=budget, sampling=sampling,
                   eos_id=pair.eos_id)
  complete = functools.partial(meshes.generate, pair, keys, prompts, lengths,
                               **arguments)
  if streams.asked():
    out, took = streams.show(turns.shown(), pair, keys, prompts, lengths,
                             **arguments)
  else:
    out, took = _show(complete, pair, lengths)
  if not processes.first():
    return
  if asked.METHOD.value == _AUTO:
    print(choice.reason)
  print(_statistics(method, out, took))
  for line in _remarks(pair, streams.tokens(out, lengths)):
    print(line)
  if _PROFILE.value:
    print(profiles.profile(complete, int(out.steps), _PROFILE.value))


def _show(complete, pair, lengths):
  """Prints a completion, decoded twice; what `streams.show` returns."""
  _, first = launch.timed(complete)
  out, seconds = launch.decoded(complete)
  if processes.first():
    print(turns.shown() + pair.tokenizer.decode(streams.tokens(out, lengths)))
  rate = metrics.token_rate(out.stats.emitted, [seconds])
  return out, f"{rate:.0f} tokens/s, compiled in {first - seconds:.1f} s"


def _statistics(method, out, took):
  stats = out.stats
  efficiency = metrics.block_efficiency(stats.emitted, stats.target_calls)
  return (f"{method.name}: {stats.emitted[0]} tokens, {stats.target_calls[0]} "
          f"target calls, block efficiency {efficiency:.2f}, {took}, mean "
          "log-probability "
          f"{metrics.ratio(out.log_probs[0], stats.emitted):.2f}")


def _remarks(pair, tokens):
  """Lines that a completion, or its sampling, gives cause for."""
  lines = [remarks.unfinished(tokens, pair.eos_id, asked.MAX_NEW_TOKENS.value)
           ] if processing.form() else []
  return filter(None, [*lines, *asked.remarks()])


if __name__ == "__main__":
  launch.run(main)
