"""Adds bigrams of texts to a DFlash head, without training it (UBTree).

  python -m experiments.studies.bigram_head --head=python-dflash \\
      --out=runs/ubtree

DFlash's distributions of a block know of no drafted token. To the logits of x
after a drafted token y this adds w log p(x | y) / p(x), as counted in texts; so
a tree's nodes are scored by unigrams of the head and bigrams of the texts. The
first token's distribution has read the token before it, and stays. The matrix
of logarithms is kept to a rank, rows weighted by how often they occur: it is
then DSpark's bias, and any method drafts with it, sampled or best-first.

Of UBTree (arXiv 2609.39972) no text was at hand, only that it scores trees by
unigrams and bigrams: where its bigrams come from, and their weight, are this
library's. Results: docs/results/heads.md.
"""

import dataclasses

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.data import python_corpus
from experiments.data import records
from models import checkpoints
from models.folders import resolve
from models.heads import block
from models.huggingface import heads
from models.text import tokenizers
from models.transformer import quantization


def main():
  with launch.user_errors(OSError, ValueError):
    target = checkpoints.architecture(TARGET.value)
    config, kept, params = opened(HEAD.value, target)
    tokenizer = tokenizers.load(TARGET.value)
    if TEXT.value:
      texts = [tokenizer.encode(text).ids
               for text in records.texts(TEXT.value, "--text")]
    else:
      texts = [python_corpus.encode(tokenizer, python_corpus.TRAIN)]
    left, right = bigrams(texts, target.vocab_size, RANK.value, PRIOR.value)
    config = dataclasses.replace(config, markov_root=False,
                                 markov_rank=left.shape[1])
    heads.save(OUT.value, block, config, params | {
        "markov_in": WEIGHT.value * left, "markov_out": right}, kept)
  print(f"{OUT.value}: {HEAD.value} with bigrams of "
        f"{sum(map(len, texts))} tokens.")


def opened(folder, target):
  """Returns config, kept layers and parameters of a DFlash head."""
  path = resolve.folder(folder)
  config = heads.config(path, target)
  if not isinstance(config, block.Config) or config.markov_rank or (
      config.draft_vocab):
    raise ValueError(f"--head={folder!r}: a DFlash head that drafts all tokens "
                     "is needed.")
  head = heads.load(path, target, dtype="float32", weights=quantization.DTYPE)
  return config, head.kept, head.params


def bigrams(texts, vocab_size: int, rank: int, prior: float = 20.0):
  """Returns log p(x | y) / p(x) as `[V, r]` of y and `[V, r]` of x."""
  # `prior` tokens after y count as drawn from p(x).
  counts = np.zeros((vocab_size, vocab_size))
  for text in texts:
    np.add.at(counts, (text[:-1], text[1:]), 1)
  alone = (counts.sum(axis=0) + 1) / (counts.sum() + vocab_size)
  of_rows = counts.sum(axis=1, keepdims=True) + prior
  logs = np.log((counts + prior * alone) / of_rows) - np.log(alone)
  left, sizes, right = np.linalg.svd(np.sqrt(of_rows) * logs,
                                     full_matrices=False)
  return tuple(x[:, :rank].astype(np.float32) for x in (
      left * sizes / np.sqrt(of_rows), right.T))


if __name__ == "__main__":
  HEAD = flags.DEFINE_string("head", "python-dflash", "DFlash head: folder, "
                             "hub:owner/name, or name of a shipped one.")
  TARGET = flags.DEFINE_string("target", "python-target", "Its target.")
  TEXT = flags.DEFINE_string(
      "text", "", "File of texts, as in experiments.convert; empty for the "
      "Python source that the shipped models have learned.")
  RANK = flags.DEFINE_integer("rank", 256, "Of the bias.", lower_bound=1)
  WEIGHT = flags.DEFINE_float("weight", 1.0, "Of the bigrams.", lower_bound=0)
  PRIOR = flags.DEFINE_float("prior", 20.0, "Tokens after each that count as "
                             "drawn from all.", lower_bound=0.1)
  OUT = flags.DEFINE_string("out", "runs/ubtree", "Folder to write.")
  launch.run(main)
