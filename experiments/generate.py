"""Completes a prompt with any method, and prints statistics.

  python -m experiments.generate --prompt="def main(" \\
      --method="rsd_s(3, 4)" --temperature=0.6

Prints the text, then one line of statistics. `--method=auto` measures first, on
this prompt, and chooses the fastest method and tree; `--memory_budget=900MB`
leaves out those that need more. `--regex`, `--json_schema`
and `--stop` constrain the completion; `--stream` prints it while it is
generated, and `--compare` times plain decoding next to it. `--texts=4` shows so
many beams or samples, and how they differ. `--show_tree` prints what each step
drafts and accepts, `--tree_svg=trees.svg` draws it.
`--chat` makes the prompt a user's message:

  python -m experiments.generate --prompt="What is a rainbow?" --chat \\
      --target=hub:HuggingFaceTB/SmolLM2-1.7B-Instruct \\
      --draft=hub:HuggingFaceTB/SmolLM2-135M-Instruct

Without `--prompt` it answers lines of the standard input, message by message.
"""

import functools

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from decoding_jax import metrics
from decoding_jax.validation import keys as row_keys
from experiments.app import launch
from experiments.app import multihost
from experiments.app import text_tables
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.flags import chat
from experiments.flags import constraint_flags
from experiments.flags import display_flags
from experiments.flags import generation_flags
from experiments.flags import grammar_engine
from experiments.flags import model_flags
from experiments.flags import prompt_flags
from experiments.flags import reward_flags
from experiments.timing import profile
from experiments.timing import stopwatch
from models.text import tokenizers

_PROMPT = flags.DEFINE_string("prompt", "def main(", "Text to continue.")
# Prompts are padded to a multiple of it: about equal lengths share the
# programs of `--compilation_cache`.
_WIDTH = 32
# --help shows flags of a main alone, and of modules that it adopts.
for _module in (generation_flags, model_flags, mesh, constraint_flags,
                prompt_flags, display_flags, reward_flags, profile):
  flags.adopt_module_key_flags(_module)


def main():
  pair, methods = generation_flags.opened(1, reward_flags.given())
  sampling = generation_flags.sampling()
  budget = generation_flags.MAX_NEW_TOKENS.value
  if prompt_flags.CHAT.value and not _PROMPT.present:
    chat.converse(pair, methods)
    return
  prompt = prompt_flags.encode(_PROMPT.value, pair.tokenizer,
                               model_flags.TARGET.value)
  prompt_length = _padded_length(len(prompt), budget, pair)
  judged = reward_flags.judged(pair, prompt_length, budget)
  for method in methods:
    model_pair.check(method, pair, prompt_length, budget, sampling,
                     judged and judged.reward)
  display_flags.check(methods, sampling)
  rows = display_flags.TEXTS.value
  display_flags.note("Reading the models ...")
  pair = generation_flags.load(pair, methods, rows, rows, prompt_length)
  pair = constraint_flags.apply(pair, prompt_length, budget)
  prompts = np.zeros((1, prompt_length), np.int32)
  lengths = np.array([len(prompt)])
  prompts[0, :len(prompt)] = prompt
  method = methods[0]
  if generation_flags.METHOD.value == generation_flags.AUTO:
    choice = generation_flags.choose(pair, prompts, lengths, 1)
    method = choice.method
  keys = _row_keys(0, 1)
  arguments = dict(method=method, max_new_tokens=budget, sampling=sampling,
                   eos_id=pair.eos_id, **reward_flags.arguments(judged, pair))
  decode = functools.partial(mesh.generate, pair, keys, prompts, lengths)
  complete = functools.partial(decode, **arguments)
  text_of = functools.partial(tokenizers.decode, pair.tokenizer, prompt=prompt)
  display_flags.note("Compiling, or loading programs compiled before ...")
  if display_flags.STREAM.value:
    out, took = display_flags.stream(_prompt_text(), pair, keys, prompts,
                                     lengths, **arguments)
  elif display_flags.shows_trees():
    out, took = display_flags.show_trees(pair, keys, prompts, lengths,
                                         **arguments)
    _print(out, text_of, lengths)
  else:
    out, took = _show(complete, text_of, lengths)
  others = display_flags.more_texts(
      lambda count: mesh.generate(
          pair, _row_keys(1, count), np.repeat(prompts, count, axis=0),
          np.repeat(lengths, count),
          **{**arguments, **reward_flags.arguments(judged, pair, count)}),
      out, lengths, text_of)
  rates = [display_flags.compare(method.name, complete, functools.partial(
      decode, **{**arguments, "method": dj.methods.autoregressive()}))
           ] if display_flags.COMPARE.value else []
  if not multihost.first():
    return
  for line in others:
    print(line)
  if generation_flags.METHOD.value == generation_flags.AUTO:
    print(choice.report)
  print(_statistics(method, out, took, model_pair.device_text(pair.mesh)))
  for line in (*reward_flags.line(out), *rates,
               *_remarks(pair, display_flags.tokens(out, lengths))):
    print(line)
  if profile.FOLDER.value:
    print(profile.profile(complete, int(out.steps), profile.FOLDER.value))


def _padded_length(length, budget, pair):
  """Returns the tokens that a prompt is padded to, as far as models allow."""
  room = min([model.max_length - budget for model in (pair.target, pair.draft)
              if model and model.max_length], default=length + _WIDTH)
  return max(length, min(-(-length // _WIDTH) * _WIDTH, room))


def _row_keys(first, count):
  key = jax.random.key(generation_flags.SEED.value)
  return row_keys.of_rows(key, first + count)[first:]


def _show(complete, text_of, lengths):
  """Prints a completion; returns as `--stream`."""
  out, seconds, compiling = stopwatch.compiled(complete)
  _print(out, text_of, lengths)
  rate = metrics.token_rate(out.stats.emitted, [seconds])
  return out, f"{rate:.3g} tokens/s, " + (
      "without jit" if jax.config.jax_disable_jit else
      f"compiled in {compiling:.1f} s")


def _prompt_text():
  """Returns the text to print in front of a completion; "" in a chat."""
  return "" if prompt_flags.CHAT.value else _PROMPT.value


def _print(out, text_of, lengths):
  if multihost.first():
    print(_prompt_text() +
          text_of(display_flags.tokens(out, lengths)))


def _statistics(method, out, took, device):
  stats = out.stats
  efficiency = metrics.block_efficiency(stats.emitted, stats.target_calls)
  calls = text_tables.count(stats.target_calls[0], "target call")
  return (f"{method.name}: {text_tables.count(stats.emitted[0], 'token')}, "
          f"{calls}, block efficiency {efficiency:.2f}, {took} on {device}, "
          "mean log-probability "
          f"{metrics.ratio(out.log_probs[0], stats.emitted):.2f}")


def _remarks(pair, tokens):
  lines = [
      generation_flags.unfinished(tokens, pair.eos_id)
  ] if constraint_flags.form() and not grammar_engine.ends(
      pair, tokens[None])[0].any() else []
  return filter(None, [grammar_engine.report(pair.target_params), *lines,
                       *generation_flags.remarks()])


if __name__ == "__main__":
  launch.run(main)
