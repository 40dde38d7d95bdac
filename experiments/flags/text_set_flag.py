"""The flag `--texts`: several completions of a prompt, and how they differ."""

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.scoring import text_metrics
from experiments.scoring import text_sets

_TEXTS = flags.DEFINE_integer(
    "texts", 1, "Completions to show, with the diversity of all of them: beams "
    "or samples of a method that searches, else one for each of so many keys.",
    lower_bound=1)
_REFERENCE = flags.DEFINE_string(
    "reference", "", "Text that a good completion is like: shows the BLEU of "
    "the best of the first 1, 2, 4, ... of --texts.")


def count() -> int:
  """Returns the value of the flag."""
  return _TEXTS.value


def check(streams: bool):
  """Raises `UserError` for flags that do not go together."""
  if count() > 1 and streams:
    raise launch.UserError("--texts and --stream: one text is streamed.")
  if count() == 1 and _REFERENCE.value:
    raise launch.UserError("--reference compares several texts: --texts of at "
                           "least 2 is needed.")


def report(generate, out, lengths, decode) -> list[str]:
  """Returns the lines that `--texts` adds to a completion.

  Args:
    generate: `(count) -> dj.Generation` of so many further rows of the prompt.
    out: the `dj.Generation` of one row.
    lengths: `[1]` int32, of the prompt.
    decode: `(tokens) -> text`.

  Returns:
    A line for each text and one of metrics; none for one text.
  """
  if count() == 1:
    return []
  texts = [decode(tokens) for tokens in _tokens(generate, out, lengths)]
  return [*(f"[{i}] {text}" for i, text in enumerate(texts, 1)), metrics(texts)]


def metrics(texts) -> str:
  """Returns a line of the metrics of a set of texts."""
  line = (f"{len(texts)} texts: {len(set(texts))} different, distinct-1 "
          f"{text_sets.distinct(texts, 1):.2f}, distinct-2 "
          f"{text_sets.distinct(texts, 2):.2f}, self-BLEU "
          f"{text_sets.self_bleu(texts):.1f}")
  if not _REFERENCE.value:
    return line
  scores = text_metrics.bleu(texts, [_REFERENCE.value] * len(texts))
  sizes = [2**i for i in range(len(texts).bit_length())]
  figures = text_sets.oracle([scores], sizes)
  return line + ", oracle BLEU " + ", ".join(
      f"{figure:.1f} of {size}" for size, figure in zip(sizes, figures))


def _tokens(generate, out, lengths):
  """Yields the tokens of each text."""
  extra = out.stats.extra
  if "beams" in extra:
    beams, ends = (np.asarray(extra[x][0]) for x in ("beams", "beam_lengths"))
    # A beam of probability 0 is no text.
    real = np.asarray(extra["beam_log_probs"][0]) > -np.inf
    for tokens, end in list(zip(beams[real], ends[real]))[:count()]:
      yield tokens[:end]
    return
  for found in (out, generate(count() - 1)):
    for tokens, end in zip(np.asarray(found.tokens), found.lengths):
      yield tokens[int(lengths[0]):int(end)]
