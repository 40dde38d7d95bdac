"""A completion that is shown while it grows: the flag `--stream`."""

import time

from absl import flags
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import model_pair
from models.text import tokenizers

_STREAM = flags.DEFINE_bool(
    "stream", False, "Print the text while it grows: by a method that drafts, "
    "or autoregressive, on one device.")


def is_enabled() -> bool:
  """Whether the flag is set."""
  return _STREAM.value


def check(methods, sampling):
  """Checks that texts grow while they are decoded, if they are to be shown.

  Args:
    methods: list of `dj.Method`.
    sampling: a `dj.Sampling`.

  Raises:
    UserError: naming a method that finds its whole text at once.
  """
  for method in methods if is_enabled() else ():
    kind = method.sampled if sampling.temperature else method.greedy
    if not isinstance(kind, dj.Pair):
      raise launch.UserError(f"--stream: method {method.name} knows its text "
                             "only at the end.")


def show(prompt, pair, keys, prompts, lengths, **arguments):
  """Prints a completion, as far as no further token can change it.

  All that is printed is the text of prompt and tokens.

  Args:
    prompt: a text.
    pair: a `model_pair.ModelPair`, on one device.
    keys: `[1]` random keys.
    prompts: `[1, P]` int32, the tokens of the text.
    lengths: `[1]` int32.
    **arguments: others of `dj.stream`.

  Returns:
    The `dj.Generation`, and what is to be told of the time.

  Raises:
    UserError: for a mesh, or logits that are NaN.
  """
  if pair.mesh is not None:
    raise launch.UserError("--stream and --mesh: on a mesh a generation is one "
                           "program, which tells nothing before its end.")
  start, shown = time.perf_counter(), 0
  print(prompt, end="", flush=True)
  for out in dj.stream(
      keys, prompts, lengths, target=pair.target,
      target_params=pair.target_params, draft=pair.draft,
      draft_params=pair.draft_params, **arguments):
    model_pair.check_logits(out)
    text = tokenizers.decode_stable_prefix(pair.tokenizer, tokens(out, lengths))
    print(text[shown:], end="", flush=True)
    shown = max(shown, len(text))
  print(pair.tokenizer.decode(tokens(out, lengths))[shown:])
  return out, f"{time.perf_counter() - start:.1f} s with compilation"


def tokens(out: dj.Generation, lengths):
  """The tokens after the prompt of the first row."""
  return np.asarray(out.tokens[0, int(lengths[0]):int(out.lengths[0])])
