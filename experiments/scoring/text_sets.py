"""Metrics of sets of texts of one prompt; white space separates words."""

import numpy as np

from experiments.scoring import text_metrics


def oracle(scores, sizes) -> list[float]:
  """Returns the mean score of the best of the first k texts of each set."""
  # `scores` are `[R, W]`, NaN after the last text of a smaller set; `sizes` are
  # the k, each from 1 to W.
  scores = np.asarray(scores, np.float64)
  wrong = [k for k in sizes if not 1 <= k <= scores.shape[1]]
  if wrong:
    raise ValueError(f"sizes={list(sizes)}: 1 to {scores.shape[1]} texts are "
                     "needed.")
  return [float(np.nanmax(scores[:, :k], axis=1).mean()) for k in sizes]


def distinct(texts, size: int) -> float:
  """Returns the share of distinct n-grams of all texts of a set."""
  # Li et al. 2016, arXiv 1510.03055: "a b", "a c" have 3 distinct words of 4.
  # NaN where no text has n words.
  grams = [gram for text in texts for gram in zip(
      *(text.split()[i:] for i in range(size)))]
  return len(set(grams)) / len(grams) if grams else float("nan")


def self_bleu(texts) -> float:
  """Returns the mean BLEU of each text against the others of its set."""
  # Zhu et al. 2018, arXiv 1802.01886: 100 for equal texts; NaN for one.
  if len(texts) < 2:
    return float("nan")
  return float(np.mean([
      text_metrics.bleu_against(text, [*texts[:i], *texts[i + 1:]])
      for i, text in enumerate(texts)]))
