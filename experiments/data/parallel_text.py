"""Training data: pairs of prompt and completion, from parallel text files.

Line i of one file is the prompt of line i of the other. A pair is one row,

     dog catch frisbee = A dog catches a frisbee.<|endoftext|>

A space precedes every word, also the first ones of prompt and completion, so
that a word has the same tokens everywhere. The loss is over the completion and
the end of text, not the prompt.

A small model is slow to learn from few pairs that a completion contains the
words of its prompt. Two augmentations show it more clearly than the corpus. In
both, the prompt is some words of the completion, in any order; in the second,
other words replace these, so that only the prompt predicts them:

     catches frisbee = A dog catches a frisbee.
     violet meeting = A dog violet a meeting.
"""

import collections
import pathlib
import re
from typing import NamedTuple

import numpy as np

from decoding_jax import types
from experiments.data import batches
from models.text import tokenizers

PROMPT, COMPLETION = " {} =", " {}"
_WORD = re.compile(r"[^\W\d_]+")
# Words that are too frequent or too short for a prompt: the number of most
# frequent words, and of characters.
_FREQUENT, _SHORT = 80, 2
# Number of words of a prompt.
_FEWEST, _MOST = 2, 5


class Rows(NamedTuple):
  """Pairs as tokens."""
  tokens: np.ndarray  # `[R, L]` int32, right-padded with `types.PAD`
  starts: np.ndarray  # `[R]` int32, position where the completion starts
  ends: np.ndarray  # `[R]` int32, position after its last token


def check(config) -> None:
  """Raises a ValueError for settings that do not describe pairs."""
  for name in ("train_pairs", "held_out_pairs"):
    if len(config[name]) != 2:
      raise ValueError(f"--config.{name}={tuple(config[name])} must name two "
                       "files, of prompts and of completions.")
  batches.check_ascending(config)
  shares = config.keyword_fraction, config.renamed_fraction
  if min(shares) < 0 or sum(shares) > 1:
    raise ValueError(
        f"--config.keyword_fraction={shares[0]} and --config.renamed_fraction="
        f"{shares[1]} must be at least 0, and together at most 1.")
  if config.sample_fraction and config.sample_length > max(config.windows) + 1:
    raise ValueError(
        f"--config.sample_length={config.sample_length} must be at most one "
        f"more than the longest of --config.windows={tuple(config.windows)}.")


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  return [PROMPT.format(a) + COMPLETION.format(b)
          for a, b in zip(*read(config.corpus, config.train_pairs))]


def data(config, tokenizer) -> batches.Data:
  """Reads rows of `config.train_pairs` and of `config.held_out_pairs`."""
  texts_, held_out_texts = (read(config.corpus, names) for names in (
      config.train_pairs, config.held_out_pairs))
  train, held_out = (rows(tokenizer, *x, config.windows)
                     for x in (texts_, held_out_texts))
  longest = max(config.windows)
  if config.sample_fraction and config.sample_length <= train.starts.max():
    raise ValueError(
        f"--config.sample_length={config.sample_length} must exceed the "
        f"longest prompt of --config.train_pairs, {train.starts.max()} tokens.")
  rewritten = _rewritten(config, tokenizer, train, texts_) if (
      config.keyword_fraction or config.renamed_fraction) else None

  def held_out_batch(count):
    return batch(held_out, batches.spread(len(held_out.tokens), count), longest)

  def prompts(count):
    chosen = np.random.default_rng(config.seed).integers(
        len(train.tokens), size=count)
    lengths = train.starts[chosen]
    tokens = train.tokens[chosen, :lengths.max()]
    inside = np.arange(lengths.max()) < lengths[:, None]
    return np.where(inside, tokens, 0), lengths

  def train_batch(step, samples):
    length, chosen = batches.of_one_length(config, train.ends - 1, step)
    rng = np.random.default_rng((config.seed, step))
    parts = []
    if samples is not None:
      # Samples may be shorter than the windows.
      samples = np.pad(samples, ((0, 0), (0, longest + 1 - samples.shape[1])),
                       constant_values=types.PAD)
      written = Rows(samples, prompts(len(samples))[1],
                     (samples != types.PAD).sum(axis=1))
      fitting = np.flatnonzero(
          batches.padded(config, written.ends - 1) == length)
      share = round(config.sample_fraction * len(chosen))
      parts.append(batch(
          written, rng.choice(fitting, share if len(fitting) else 0), length))
    left = chosen[:len(chosen) - sum(len(part.tokens) for part in parts)]
    # None are left if the teacher's samples are all of the batch.
    parts.append(rewritten(rng, left, length) if rewritten and len(left) else
                 batch(train, left, length))
    return batches.joined(parts)

  return batches.Data(train_batch, held_out_batch, prompts,
                      tokenizers.eos_id(tokenizer))


def rows(tokenizer, prompts, completions, windows) -> Rows:
  """Encodes pairs of lines, none longer than the longest of `windows`."""
  pairs = [_encode(tokenizer, *pair)
           for pair in zip(prompts, completions, strict=True)]
  needed = [len(tokens) - 1 for _, tokens in pairs]
  if max(needed) > max(windows):
    raise ValueError(
        f"--config.windows={tuple(windows)}: the longest pair, line "
        f"{np.argmax(needed) + 1}, needs a window of {max(needed)} tokens.")
  return _pad(pairs, max(windows) + 1)


def batch(rows_: Rows, chosen, length: int) -> batches.Batch:
  """Makes a batch of rows with `length` inputs; completions have weights."""
  tokens = rows_.tokens[chosen, :length + 1]
  position = np.arange(1, length + 1)
  weights = ((position >= rows_.starts[chosen, None])
             & (position < rows_.ends[chosen, None]))
  # Padding has no weight and comes last, so that its token does not matter.
  return batches.Batch(np.maximum(tokens, 0), weights.astype(np.float32))


def prompt_tokens(tokenizer, prompt: str) -> list[int]:
  """Encodes a prompt as in the training data."""
  return tokenizer.encode(PROMPT.format(prompt)).ids


def lines(folder, names) -> list[list[str]]:
  """Returns the lines of files of `--config.corpus`, of each file in a list."""
  paths = [pathlib.Path(folder) / name for name in names]
  for path in paths:
    if not path.is_file():
      raise FileNotFoundError(
          f"No file '{path}': --config.corpus={str(folder)!r} must be a folder "
          f"with {' and '.join(names)}.")
  # Not splitlines, which also splits at characters that a text may contain.
  return [path.read_text("utf-8").removesuffix("\n").split("\n")
          for path in paths]


def read(folder, names) -> tuple[list[str], list[str]]:
  """Returns prompts and completions of two parallel files, equally many."""
  pairs = lines(folder, names)
  if len(pairs[0]) != len(pairs[1]) or not pairs[0]:
    raise ValueError(
        f"'{names[0]}' and '{names[1]}' of --config.corpus={str(folder)!r} "
        f"have {len(pairs[0])} and {len(pairs[1])} lines: as many, and at "
        "least one, are needed.")
  return pairs[0], pairs[1]


def rewriter(config, completions):
  """Returns `(rng, prompt, completion) -> (prompt, completion)`."""
  # `completions` of the train split are the source of the words. Of other rows
  # only the order of the prompt's words changes.
  counts = collections.Counter(
      word.lower() for text in completions for word in _WORD.findall(text))
  frequent = {word for word, _ in counts.most_common(_FREQUENT)}
  rare = lambda word: len(word) > _SHORT and word.lower() not in frequent
  others = [word for word, count in counts.items() if count > 1 and rare(word)]

  def rewrite(rng, prompt, completion):
    draw, words = rng.random(), prompt.split()
    rare_words = list(filter(rare, dict.fromkeys(_WORD.findall(completion))))
    if draw < config.keyword_fraction + config.renamed_fraction and (
        len(rare_words) >= _FEWEST):
      size = min(len(rare_words), rng.integers(_FEWEST, _MOST + 1))
      words = [rare_words[i] for i in rng.permutation(len(rare_words))[:size]]
      # A small corpus may have no other words to choose from.
      if others and draw < config.renamed_fraction:
        new = {word: others[rng.integers(len(others))] for word in words}
        completion = _WORD.sub(lambda m: new.get(m[0], m[0]), completion)
        words = list(new.values())
    return " ".join(words[i] for i in rng.permutation(len(words))), completion

  return rewrite


def _rewritten(config, tokenizer, train, texts_):
  """Returns `(rng, chosen, length) -> Batch` of rewritten pairs."""
  # A rewritten pair that does not fit in the length is not used.
  rewrite = rewriter(config, texts_[1])

  def of(rng, chosen, length):
    pairs = [_encode(tokenizer, *rewrite(rng, *(x[row] for x in texts_)))
             for row in chosen]
    pairs = [pair if len(pair[1]) <= length + 1 else
             (train.starts[row], train.tokens[row, :train.ends[row]])
             for row, pair in zip(chosen, pairs)]
    return batch(_pad(pairs, length + 1), np.arange(len(chosen)), length)

  return of


def _encode(tokenizer, prompt, completion):
  """Returns the start of the completion, and all tokens of a pair."""
  start = tokenizer.encode(PROMPT.format(prompt)).ids
  return len(start), [
      *start, *tokenizer.encode(COMPLETION.format(completion)).ids,
      tokenizers.eos_id(tokenizer)]


def _pad(pairs, size):
  """Makes `Rows`, `size` tokens wide, of results of `_encode`."""
  starts, texts_ = zip(*pairs)
  ends = np.array([len(text) for text in texts_], np.int32)
  tokens = np.full((len(ends), size), types.PAD, np.int32)
  tokens[np.arange(size) < ends[:, None]] = np.concatenate(texts_)
  return Rows(tokens, np.array(starts, np.int32), ends)
