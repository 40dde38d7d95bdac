"""Completes a prompt with any method, and tells what it took.

  python -m experiments.generate --prompt="def main(" --method=rsd_s \\
      --width=3 --depth=4 --temperature=0.6

Prints the text, then one line of statistics. `--method=auto` measures first, on
this prompt, and takes the method and the tree that are fastest.
`--regex`, `--json_schema` and `--stop` say what the completion must be.
"""

import inspect

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

_PROMPT = flags.DEFINE_string("prompt", "def main(", "Text to continue.")
_METHOD = flags.DEFINE_string("method", "rsd_s", "Name of a method, or auto.")
_AUTO = "auto"
# Sizes of methods; those that a method needs and no flag sets have defaults.
_SIZES = {
    "width": (flags.DEFINE_integer("width", None, "Nodes of a level."), 3),
    "depth": (flags.DEFINE_integer("depth", None, "Drafted tokens."), 4),
    "num_paths": (flags.DEFINE_integer("num_paths", None, "Paths."), 3),
    "num_beams": (flags.DEFINE_integer("num_beams", None, "Beams."), 4),
    "num_groups": (flags.DEFINE_integer("num_groups", None, "Of beams."), 2),
    "branching": (flags.DEFINE_string(
        "branching", None, "Children of each node of level 0, 1, ...: 2,2,1."),
        (2, 2, 1)),
    "children": (flags.DEFINE_string(
        "children", None, "Children of each node, level after level: "
        "2/2,0/1,1."), ((2,), (2, 0), (1, 1))),
}
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0 is greedy.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Mass of tokens to keep; 1: all.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Tokens to keep; 0: all.")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128, "Most tokens.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random key.")
_TARGET = flags.DEFINE_string("target", "python-target",
                              "Folder or name of a shipped model.")
_DRAFT = flags.DEFINE_string("draft", "python-draft", "The same.")
_COMPILED = flags.DEFINE_string(
    "compilation_cache", "runs/generate/compiled",
    "Folder of compiled programs, which the next start loads; '' for none.")
_PROFILE = flags.DEFINE_string(
    "profile", "", "Folder for a profiler's trace, and a table of where the "
    "time of a step goes; '' for none.")


def main():
  methods = auto.methods() if _METHOD.value == _AUTO else [
      launch.method({"name": _METHOD.value, **sizes(_METHOD.value)})]
  meshes.join(_TARGET.value, 1)
  pair = launch.open_pair(_TARGET.value, _DRAFT.value)
  prompt = pair.tokenizer.encode(_PROMPT.value).ids
  if not prompt:
    raise launch.UserError("--prompt is empty: at least one token is needed.")
  sampling = dj.Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
  for method in methods:
    launch.check(method, pair, len(prompt), _MAX_NEW_TOKENS.value, sampling)
  pair = meshes.load(pair, _TARGET.value, _DRAFT.value,
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

  def complete():
    return meshes.generate(
        pair, keys, prompts, lengths, method=method,
        max_new_tokens=_MAX_NEW_TOKENS.value, sampling=sampling,
        eos_id=pair.eos_id)

  out, first = launch.timed(complete)
  out, seconds = launch.decoded(complete)
  if not processes.first():
    return
  tokens = np.asarray(out.tokens[0, len(prompt):int(out.lengths[0])])
  print(_PROMPT.value + pair.tokenizer.decode(tokens))
  if _METHOD.value == _AUTO:
    print(choice.reason)
  print(_statistics(method, out, seconds, first - seconds))
  if _PROFILE.value:
    print(profiles.profile(complete, int(out.steps), _PROFILE.value))


def sizes(name):
  """Those of flags, and defaults of others that the method needs."""
  launch.check_names("--method", [name], [_AUTO])
  needed = [size for size, parameter in inspect.signature(
      getattr(dj.methods, name)).parameters.items()
            if parameter.default is parameter.empty]
  if not set(needed) <= set(_SIZES):
    raise launch.UserError(
        f"--method={name} is steered by a reward, of which there is none here; "
        "experiments.cdsl has rewards.")
  given = {size: flag.value for size, (flag, _) in _SIZES.items()
           if flag.value is not None}
  if "branching" in given:
    given["branching"] = _numbers("branching", given["branching"])
  if "children" in given:
    given["children"] = tuple(_numbers("children", level)
                              for level in given["children"].split("/"))
  return {**{size: _SIZES[size][1] for size in needed}, **given}


def _numbers(name, text):
  try:
    return tuple(map(int, text.split(",")))
  except ValueError as e:
    raise launch.UserError(
        f"--{name}: {text!r} is no list of whole numbers, as 2,1 is.") from e


def _statistics(method, out, seconds, compile_seconds):
  stats = out.stats
  efficiency = metrics.block_efficiency(stats.emitted, stats.target_calls)
  return (f"{method.name}: {stats.emitted[0]} tokens, {stats.target_calls[0]} "
          f"target calls, block efficiency {efficiency:.2f}, "
          f"{metrics.token_rate(stats.emitted, [seconds]):.0f} tokens/s, "
          f"compiled in {compile_seconds:.1f} s, mean log-probability "
          f"{metrics.ratio(out.log_probs[0], stats.emitted):.2f}")


if __name__ == "__main__":
  launch.run(main)
