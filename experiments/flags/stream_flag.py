"""The flag `--stream`: print a completion while it is generated."""

import time

from absl import flags
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import model_pair
from models.text import batching

_STREAM = flags.DEFINE_bool(
    "stream", False, "Print the text while it is generated; for methods that "
    "draft and autoregressive decoding, on one device.")


def is_enabled() -> bool:
  """Returns the value of the flag."""
  return _STREAM.value


def check(methods, sampling):
  """Checks that methods can stream, if the flag asks for it.

  Args:
    methods: list of `dj.Method`.
    sampling: a `dj.Sampling`.

  Raises:
    UserError: naming a method whose text is only known at its end.
  """
  for method in methods if is_enabled() else ():
    kind = method.sampled if sampling.temperature else method.greedy
    if not isinstance(kind, dj.Pair):
      raise launch.UserError(f"--stream: the text of method {method.name} is "
                             "only known at its end.")


def show(prompt, pair, keys, prompts, lengths, **arguments):
  """Prints prompt and completion while they grow.

  Characters that a further token could still change are held back.

  Args:
    prompt: a text.
    pair: a `model_pair.ModelPair`, on one device.
    keys: `[1]` random keys.
    prompts: `[1, P]` int32, the tokens of the text.
    lengths: `[1]` int32.
    **arguments: further ones of `dj.stream`, `method` among them.

  Returns:
    The `dj.Generation`, and a phrase about the time it took.

  Raises:
    UserError: for a mesh, a token of the prompt that the target does not have,
      or logits that are NaN.
  """
  if pair.mesh is not None:
    raise launch.UserError("--stream and --mesh: a generation on a mesh is one "
                           "program, whose text is only known at its end.")
  model_pair.check_prompts(pair, prompts, lengths)
  pair = model_pair.for_method(pair, arguments["method"])
  times, counts = [time.perf_counter()], []
  outs = dj.stream(
      keys, prompts, lengths, target=pair.target,
      target_params=pair.target_params, draft=pair.draft,
      draft_params=pair.draft_params, **arguments)
  print(prompt, end="", flush=True)
  for out, parts in batching.stream(pair.tokenizer, outs, lengths):
    model_pair.check_logits(out)
    print(parts[0], end="", flush=True)
    times.append(time.perf_counter())
    counts.append(int(out.lengths[0]))
  print()
  return out, _took(times, counts)


def _took(times, counts):
  """Returns a phrase about the time of a stream.

  Args:
    times: in seconds, of the start and of each part.
    counts: tokens after each part.
  """
  total = f"{times[-1] - times[0]:.1f} s with compilation"
  added, seconds = np.diff(counts), np.diff(times[1:])
  grows = added > 0
  if not grows.any():
    return total
  # A median: where a cache grows, a step waits for another program.
  rate = added[grows].mean() / np.median(seconds[grows])
  return f"{rate:.1f} tokens/s after the first step, {total}"


def tokens(out: dj.Generation, lengths):
  """Returns the tokens after the prompt of the first row."""
  return np.asarray(out.tokens[0, int(lengths[0]):int(out.lengths[0])])
