"""Flags for how a completion is shown: while it grows, or next to others."""

import pathlib
import statistics
import sys
import time

from absl import flags
import numpy as np

import decoding_jax as dj
from decoding_jax import metrics
from experiments.app import launch
from experiments.app import multihost
from experiments.app import text_tables
from experiments.devices import model_pair
from experiments.timing import stopwatch

STREAM = flags.DEFINE_bool(
    "stream", False, "Print the text while it is generated; for methods that "
    "draft and autoregressive decoding, on one device.")
_SHOW = flags.DEFINE_bool(
    "show_tree", False, "Print the tree of each step, with the probabilities "
    "of draft and target; * marks the drafts that are accepted, + the token "
    "after them. On one device, for methods that draft trees or chains.")
_SVG = flags.DEFINE_string(
    "tree_svg", "", "File such as trees.svg, for the same as an image; '' for "
    "none.")
TEXTS = flags.DEFINE_integer(
    "texts", 1, "Completions to show, with the diversity of all of them: beams "
    "or samples of a method that searches, else one for each of as many keys.",
    lower_bound=1)
_REFERENCE = flags.DEFINE_string(
    "reference", "", "Text that a good completion is like: shows the BLEU of "
    "the best of the first 1, 2, 4, ... of --texts.")
COMPARE = flags.DEFINE_bool(
    "compare", False, "Decode the prompt autoregressively as well, in turn "
    "with --method, and print tokens a second of both.")
_ROUNDS = 3


def note(text: str) -> None:
  """Says on stderr what is being done, while there is nothing else to see."""
  if multihost.first():
    print(text, file=sys.stderr, flush=True)


def shows_trees() -> bool:
  """Returns whether trees are to be shown."""
  return _SHOW.value or bool(_SVG.value)


def check(methods, sampling, streams="") -> None:
  """Raises `UserError` unless the flags fit the methods and each other.

  `streams` names what streams the text, if it is another flag than --stream.
  """
  streams = streams or ("--stream" if STREAM.value else "")
  trees = shows_trees() and ("--show_tree" if _SHOW.value else "--tree_svg")
  other = next((x.name for x in methods if not isinstance(
      x.sampled if sampling.temperature else x.greedy, dj.Pair)), "")
  folder = pathlib.Path(_SVG.value).absolute().parent
  for is_wrong, problem in (
      (streams and other,
       f"{streams}: the text of method {other} is only known at its end."),
      (trees and streams,
       f"{trees} and {streams}: either trees or the text is shown while it "
       "grows."),
      (trees and other, f"{trees}: method {other} drafts no tree."),
      (_SVG.value and not folder.is_dir(),
       f"--tree_svg={_SVG.value}: there is no such folder."),
      (TEXTS.value > 1 and streams,
       f"--texts and {streams}: one text is streamed."),
      (TEXTS.value == 1 and _REFERENCE.value,
       "--reference compares several texts: --texts of at least 2 is needed.")):
    if is_wrong:
      raise launch.UserError(problem)


def stream(prompt, pair, keys, prompts, lengths, **arguments):
  """Prints prompt and completion while they grow.

  Characters that a further token could still change are held back. `keys` and
  `lengths` are `[1]`, `prompts` are `[1, P]`; `arguments` as in
  `dj.stream`. Returns the `dj.Generation`, and a phrase about its time.
  """
  if pair.mesh is not None:
    raise launch.UserError("--stream and --mesh: a generation on a mesh is one "
                           "program, whose text is only known at its end.")
  model_pair.check_prompts(pair, prompts, lengths)
  print(prompt, end="", flush=True)
  out, _, took = printed(pair.tokenizer, dj.stream(
      keys, prompts, lengths, **models(pair, arguments)), lengths)
  return out, took


def printed(tokenizer, outs, lengths):
  """Prints a text as it grows; returns the last of the results, the text, and a
  phrase about its time."""
  from models.text import batching  # If asked for.
  times, counts, parts = [time.perf_counter()], [], []
  for out, (part,) in batching.stream(tokenizer, outs, lengths):
    model_pair.check_logits(out)
    print(part, end="", flush=True)
    parts.append(part)
    times.append(time.perf_counter())
    counts.append(int(out.lengths[0]))
  print()
  return out, "".join(parts), took(times, counts)


def took(times, counts):
  """Returns a phrase about a stream: `times` has its start, `counts` tokens."""
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


def models(pair, arguments):
  """Returns the arguments of `dj.generate`, those of the models among them."""
  pair = model_pair.for_method(pair, arguments["method"])
  return {"target": pair.target, "target_params": pair.target_params,
          "draft": pair.draft, "draft_params": pair.draft_params, **arguments}


def show_trees(pair, keys, prompts, lengths, **arguments):
  """Decodes step by step, and shows the tree of each; arguments as `stream`."""
  if pair.mesh is not None:
    raise launch.UserError("--show_tree and --mesh: trees are shown on one "
                           "device.")
  run = dj.begin(keys, prompts, lengths, **models(pair, arguments))
  words = lambda token: pair.tokenizer.decode([token],
                                              skip_special_tokens=False)
  infos = []
  while not run.done.all():
    run, info = dj.step(run, log_probs=True)
    infos.append(info)
    if _SHOW.value:
      accepted, count = info.verdict.num_accepted[0], info.count[0]
      print(f"step {len(infos)}: {text_tables.count(accepted, 'draft')} "
            f"accepted, {text_tables.count(count, 'token')} committed")
      print(dj.drawing.text(info, words), flush=True)
  out = dj.result(run)
  model_pair.check_logits(out)
  if _SVG.value:
    image = dj.drawing.svg(infos, words)
    with launch.user_errors(OSError):
      pathlib.Path(_SVG.value).write_text(image, "utf-8")
  return out, text_tables.count(len(infos), "step")


def more_texts(generate, out, lengths, decode) -> list[str]:
  """Returns the lines of `--texts`; `generate(count)` decodes more rows."""
  if TEXTS.value == 1:
    return []
  texts = [decode(tokens) for tokens in _tokens(generate, out, lengths)]
  return [*(f"[{i}] {text}" for i, text in enumerate(texts, 1)),
          _diversity(texts)]


def _diversity(texts) -> str:
  # Few runs need it.
  from experiments.scoring import text_metrics
  line = (f"{len(texts)} texts: {len(set(texts))} different, distinct-1 "
          f"{text_metrics.distinct(texts, 1):.2f}, distinct-2 "
          f"{text_metrics.distinct(texts, 2):.2f}, self-BLEU "
          f"{text_metrics.self_bleu(texts):.1f}")
  if not _REFERENCE.value:
    return line
  scores = text_metrics.bleu(texts, [_REFERENCE.value] * len(texts))
  return line + ", oracle BLEU " + ", ".join(
      f"{scores[:2**i].max():.1f} of {2**i}"
      for i in range(len(texts).bit_length()))


def _tokens(generate, out, lengths):
  extra = out.stats.extra
  if "beams" in extra:
    beams, ends = (np.asarray(extra[x][0]) for x in ("beams", "beam_lengths"))
    # A beam of probability 0 is no text.
    real = np.asarray(extra["beam_log_probs"][0]) > -np.inf
    for tokens, end in list(zip(beams[real], ends[real]))[:TEXTS.value]:
      yield tokens[:end]
    return
  for out_ in (out, generate(TEXTS.value - 1)):
    for tokens, end in zip(np.asarray(out_.tokens), out_.lengths):
      yield tokens[int(lengths[0]):int(end)]


def compare(name: str, complete, plain) -> str:
  """Times a method and plain decoding, three times in turn, as a line."""
  decoders = (plain, complete)
  with multihost.progress(len(decoders) * (1 + _ROUNDS), "run", leave=False,
                          desc="compiling plain decoding") as bar:
    for decode in decoders:
      stopwatch.timed(decode)  # Compiles it, or loads what it needs.
      bar.update()
    bar.set_description("comparing with plain decoding")
    rounds = [[_rate(decode, bar) for decode in decoders]
              for _ in range(_ROUNDS)]
  alone, drafted = map(statistics.median, zip(*rounds))
  return (f"autoregressive {alone:.1f} tokens/s, {name} {drafted:.1f} "
          f"tokens/s: {drafted / alone:.2f} times as fast")


def _rate(decode, bar) -> float:
  out, seconds = stopwatch.decoded(decode)
  bar.update()
  return metrics.token_rate(out.stats.emitted, [seconds])
