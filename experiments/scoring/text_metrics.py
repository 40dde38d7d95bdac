"""Metrics of generated texts: per example, or over a corpus.

Packages are imported where they are used: together they take a second, and most
runs score nothing.
"""

import functools

import numpy as np

from experiments.scoring import intervals

_RESAMPLES = 1000


def bleu(texts, references):
  """Returns `[R]`, sentence BLEU against one reference each, in 0..100."""
  return np.array([score.score for score in _sentence_bleus(texts, references)])


def bleu_against(text, references):
  """Returns the sentence BLEU of a text against several references."""
  import sacrebleu  # pylint: disable=import-outside-toplevel
  return sacrebleu.sentence_bleu(text, references).score


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
  shares = []
  for text in texts:
    words = text.split()
    pairs = list(zip(words, words[1:]))
    shares.append(len(set(pairs)) / len(pairs) if pairs else 1.0)
  return np.array(shares)


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


def _mean(scores_of, texts, references, seed=0):
  """Averages a metric per example; returns as `corpus_bleu` does."""
  scores = scores_of(texts, references)
  return intervals.json_values(
      intervals.interval(scores, np.ones(len(scores)), seed))


# Name -> `(texts, references, seed) -> [figure, low, high]`.
CORPUS = {"bleu": corpus_bleu, "rouge_2": functools.partial(_mean, rouge_2),
          "rouge_l": functools.partial(_mean, rouge_l)}
