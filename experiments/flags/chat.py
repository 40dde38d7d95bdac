"""A chat in the terminal, whose caches are kept from message to message."""

import datetime
import functools
import sys

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.data import prompt_tasks
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.flags import constraint_flags
from experiments.flags import display_flags
from experiments.flags import generation_flags
from experiments.flags import model_flags
from experiments.flags import prompt_flags

_END = "/exit"
# Tokens that a chat has room for; twice as many when they are full.
_ROOM = 1024
# Messages are padded to multiples of it: few lengths are few programs.
_WIDTH = 32
# Longest text that constraints look back on.
_MOST = 2**15
# Flags that time or value a single text.
_ALONE = ("compare", "profile", "reward")


def converse(pair, methods) -> None:
  """Answers lines of the standard input, until its end or `/exit`."""
  sampling = generation_flags.sampling()
  _check(methods, sampling)
  budget = generation_flags.MAX_NEW_TOKENS.value
  window = min(prompt_tasks.positions(pair, budget, methods[0]), _MOST)
  model_pair.check(methods[0], pair, 1, budget, sampling)
  # One date: later prompts begin as the earlier ones did.
  write = prompt_flags.encoder(pair.tokenizer, model_flags.TARGET.value,
                               datetime.datetime.now())
  display_flags.note("Reading the models ...")
  pair = generation_flags.load(pair, methods, 1, 1, min(_ROOM, window))
  pair = constraint_flags.apply(pair, window, budget)
  begin = functools.partial(dj.begin, **display_flags.models(pair, dict(
      method=methods[0], max_new_tokens=budget, sampling=sampling,
      eos_id=pair.eos_id)))
  display_flags.note(f"Ctrl-D or {_END} ends the chat.")
  messages, run = [], None
  for line in _lines():
    messages, tokens = _written(
        write, [*messages, {"role": "user", "content": line}], window)
    model_pair.check_prompts(pair, [tokens], [len(tokens)])
    run, read = prompted(begin, run, tokens, window)
    run, text = _answer(pair.tokenizer, run, read)
    messages.append({"role": "assistant", "content": text})


def _check(methods, sampling):
  """Raises `UserError` for flags of a single text, and for searches."""
  display_flags.check(methods, sampling, "--chat without --prompt")
  # Several processes have a mesh without the flag.
  given = {"mesh": mesh.value(), **{name: flags.FLAGS[name].value
                                    for name in _ALONE}}
  for name, value in given.items():
    if value:
      raise launch.UserError(f"--{name}={value} and --chat without --prompt: a "
                             "chat in the terminal is of one text after the "
                             "other, on one device.")
  if len(methods) > 1:
    raise launch.UserError("--method=auto measures on one prompt, and needs "
                           "--prompt.")


def _lines():
  """Yields lines that are not empty; asks for them in a terminal."""
  while True:
    try:
      line = input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
      return
    if line == _END:
      return
    if line:
      yield line


def _written(write, messages, window):
  """Returns messages and their tokens; without the first ones, if too many."""
  while True:
    with launch.user_errors(ValueError):
      tokens = write(messages)
    if len(tokens) <= window:
      return messages, tokens
    if len(messages) == 1:
      raise launch.UserError(f"a message of {len(tokens)} tokens: with "
                             f"--{generation_flags.MAX_NEW_TOKENS.name} there "
                             f"is room for {window}.")
    display_flags.note("[the first message and its answer are forgotten]")
    messages = messages[2:]


def prompted(begin, run, tokens, window):
  """Returns a run of one row after a prompt, and how many tokens it reads.

  It goes on with `run`, or None, if the prompt begins with all of its text.
  """
  size = int(run.lengths[0]) if run else 0
  if run and size < len(tokens) <= run.context.prompts.shape[1] and (
      tokens[:size] == np.asarray(run.tokens[0, :size]).tolist()):
    more = tokens[size:]
    padded = np.zeros((1, -(-len(more) // _WIDTH) * _WIDTH), np.int32)
    padded[0, :len(more)] = more
    return dj.extend(run, padded, np.array([len(more)])), len(more)
  room = _ROOM
  while room < len(tokens):
    room *= 2
  prompt = np.zeros((1, min(room, window)), np.int32)
  prompt[0, :len(tokens)] = tokens
  # Of another number than any run before.
  key = jax.random.fold_in(jax.random.key(generation_flags.SEED.value),
                           len(tokens))
  return begin(key, prompt, np.array([len(tokens)])), len(tokens)


def _answer(tokenizer, run, read):
  """Prints an answer as it grows; returns the run at its end, and its text."""
  lengths = np.array(run.lengths)

  def outs():
    nonlocal run
    while not run.done.all():
      state, steps = _step(run.decoder, run.context, run.state, run.steps)
      run = run.replace(state=state, steps=steps)
      yield dj.result(run)

  out, text, took = display_flags.printed(tokenizer, outs(), lengths)
  display_flags.note(f"[{read} tokens read, {int(out.lengths[0] - lengths[0])} "
                     f"written, {took}]")
  return run, text


# The state is given back, so that a step writes where its caches lie.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(decoder, context, state, steps):
  run, _ = dj.step(dj.Run(decoder, context, state, steps))
  return run.state, run.steps
