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

import decoding_jax as dj
from decoding_jax import metrics
from experiments import auto
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
from models import transformer

_METHOD = flags.DEFINE_string("method", "rsd_s", "Name of a method, or auto.")
_AUTO = "auto"
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0 is greedy.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Mass of tokens to keep; 1: all.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Tokens to keep; 0: all.")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128, "Most tokens.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random key.",
                             lower_bound=0, upper_bound=2**63 - 1)
_TARGET = flags.DEFINE_string("target", "python-target",
                              "Folder, hub:owner/name, or name of a shipped "
                              "model.")
_DRAFT = flags.DEFINE_string(
    "draft", "", "The same, for a method that drafts, or lookup: what followed "
    "the same tokens before; '' for what comes with a shipped target.")
_DTYPE = flags.DEFINE_enum("dtype", "", ["", *transformer.DTYPES],
                           "Of parameters and activations; '' as saved.")
_DRAFT_DTYPE = flags.DEFINE_enum("draft_dtype", "", ["", *transformer.DTYPES],
                                 "The same, of the draft; '' as --dtype says.")
_COMPILED = flags.DEFINE_string(
    "compilation_cache", "runs/generate/compiled",
    "Folder of compiled programs, which the next start loads; '' for none.")
_PROFILE = flags.DEFINE_string(
    "profile", "", "Folder for a profiler's trace, and a table of where the "
    "time of a step goes; '' for none.")
# --help shows flags of a main alone, and of modules that it adopts.
for _module in (meshes, processing, sizes, streams, turns):
  flags.adopt_module_key_flags(_module)


def _methods():
  if _METHOD.value == _AUTO:
    sizes.check_none(_AUTO)
    return auto.methods()
  given = sizes.of_flags(_METHOD.value, [_AUTO])
  return [launch.method({"name": _METHOD.value, **given})]


def main():
  methods = _methods()
  meshes.join(_TARGET.value, 1)
  sampling = dj.Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
  draft = launch.drafter(_METHOD.value, methods, _TARGET.value, _DRAFT.value)
  pair = launch.open_pair(_TARGET.value, draft, _DTYPE.value,
                          _DRAFT_DTYPE.value)
  prompt = turns.encode(pair.tokenizer, _TARGET.value)
  for method in methods:
    launch.check(method, pair, len(prompt), _MAX_NEW_TOKENS.value, sampling)
  streams.check(methods, sampling)
  pair = meshes.load(pair, _TARGET.value, draft,
                     launch.kinds(methods, [sampling.temperature]), 1, 1,
                     len(prompt), _MAX_NEW_TOKENS.value)
  pair = processing.apply(pair)
  if _COMPILED.value:
    compilations.keep(_COMPILED.value)
  prompts, lengths = np.array([prompt], np.int32), np.array([len(prompt)])
  method = methods[0]
  if _METHOD.value == _AUTO:
    choice = auto.choose(pair, prompts, lengths, _MAX_NEW_TOKENS.value,
                         sampling)
    method = choice.method
  keys = jax.random.fold_in(jax.random.key(_SEED.value), 0)[None]
  arguments = dict(method=method, max_new_tokens=_MAX_NEW_TOKENS.value,
                   sampling=sampling, eos_id=pair.eos_id)
  complete = functools.partial(meshes.generate, pair, keys, prompts, lengths,
                               **arguments)
  if streams.asked():
    out, took = streams.show(turns.shown(), pair, keys, prompts, lengths,
                             **arguments)
  else:
    out, took = _show(complete, pair, lengths)
  if not processes.first():
    return
  if _METHOD.value == _AUTO:
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
  lines = []
  if processing.form():
    lines.append(remarks.unfinished(tokens, pair.eos_id,
                                    _MAX_NEW_TOKENS.value))
  sampling = _TEMPERATURE, _TOP_P, _TOP_K
  if not any(flag.present for flag in sampling):
    lines.append(remarks.recommended(
        _TARGET.value, {flag.name: flag.value for flag in sampling}))
  return filter(None, lines)


if __name__ == "__main__":
  launch.run(main)
