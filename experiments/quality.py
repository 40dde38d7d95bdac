"""What is said of generated texts, one figure an example."""

import numpy as np
from rouge_score import rouge_scorer
import sacrebleu


def bleu(texts, references):
  """`[R]`, BLEU of each sentence against its one reference, in 0..100."""
  return np.array([sacrebleu.sentence_bleu(text, [reference]).score
                   for text, reference in zip(texts, references)])


def rouge_l(texts, references):
  """`[R]`, F-measure of the longest common subsequence, in 0..100."""
  scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
  return np.array([100 * scorer.score(reference, text)["rougeL"].fmeasure
                   for text, reference in zip(texts, references)])


def distinct_2(texts):
  """`[R]`, share of a text's word pairs that are different; 1 without any."""
  shares = []
  for text in texts:
    words = text.split()
    found = list(zip(words, words[1:]))
    shares.append(len(set(found)) / len(found) if found else 1.0)
  return np.array(shares)
