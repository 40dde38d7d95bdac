"""Metrics of generated texts: per example, over a corpus, or of a set.

Packages are imported where they are used: together they take a second, and most
runs score nothing.
"""

import functools

import numpy as np

from experiments.scoring import answers
from experiments.scoring import intervals

_RESAMPLES = 1000
# Runs the code that a model has written.
PASS_AT_1 = "pass_at_1"


def bleu(texts, references):
  """Returns `[R]`, sentence BLEU against one reference each, in 0..100."""
  return np.array([score.score for score in _sentence_bleus(texts, references)])


def _rouge(name, texts, references):
  """Returns `[R]`, an F-measure in 0..100."""
  # pylint: disable-next=import-outside-toplevel
  from rouge_score import rouge_scorer
  scorer = rouge_scorer.RougeScorer([name], use_stemmer=True)
  return np.array([100 * scorer.score(reference, text)[name].fmeasure
                   for text, reference in zip(texts, references)])


# Of the longest common subsequence, and of the pairs of words.
rouge_l, rouge_2 = (functools.partial(_rouge, x) for x in ("rougeL", "rouge2"))


def distinct_2(texts):
  """Returns `[R]`, share of distinct word pairs of a text; 1 without any."""
  return np.nan_to_num([distinct([text], 2) for text in texts], nan=1.0)


def corpus_bleu(texts, references, seed=0):
  """Returns corpus BLEU, low and high (0..100) of its 95 % interval."""
  # It equals `sacrebleu.corpus_bleu`, the bootstrap is over texts; a single
  # text has None for the latter two.
  scores = _sentence_bleus(texts, references)
  # Corpus BLEU adds up matches and n-grams by order, and both lengths.
  counts = np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len]
                     for s in scores])
  figure = _bleu_of(counts.sum(axis=0))
  if len(counts) < 2:
    return [round(figure, 6), None, None]
  rng = np.random.default_rng(seed)
  drawn = [_bleu_of(counts[rng.integers(len(counts), size=len(counts))].sum(0))
           for _ in range(_RESAMPLES)]
  return [round(float(x), 6)
          for x in (figure, *np.quantile(drawn, (0.025, 0.975)))]


def _sentence_bleus(texts, references):
  import sacrebleu  # pylint: disable=import-outside-toplevel
  return [sacrebleu.sentence_bleu(text, [reference])
          for text, reference in zip(texts, references, strict=True)]


def _bleu_of(counts):
  import sacrebleu  # pylint: disable=import-outside-toplevel
  *grams, length, reference_length = counts.tolist()
  matches, totals = grams[:len(grams) // 2], grams[len(grams) // 2:]
  return sacrebleu.BLEU.compute_bleu(
      matches, totals, length, reference_length, smooth_method="exp").score


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
  import sacrebleu  # pylint: disable=import-outside-toplevel
  return float(np.mean([
      sacrebleu.sentence_bleu(text, [*texts[:i], *texts[i + 1:]]).score
      for i, text in enumerate(texts)]))


def _mean(scores_of, texts, references, seed):
  """Averages a metric per example; returns as `corpus_bleu` does."""
  return intervals.json_values(
      intervals.interval(scores_of(texts, references), seed=seed))


# Name -> `(texts, references, seed) -> [figure, low, high]`.
CORPUS = {"bleu": corpus_bleu, "rouge_2": functools.partial(_mean, rouge_2),
          "rouge_l": functools.partial(_mean, rouge_l),
          "exact_match": functools.partial(_mean, answers.exact_match),
          PASS_AT_1: functools.partial(_mean, answers.pass_at_1)}
