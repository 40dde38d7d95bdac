"""Augments pairs of text: prompts made of words of their completions.

A small model is slow to learn from few pairs that a completion contains the
words of its prompt. Two kinds of rows show it more clearly than the corpus. In
both, the prompt is some words of the completion, in any order; in the second,
other words replace these, so that only the prompt predicts them:

     catches frisbee = A dog catches a frisbee.
     violet meeting = A dog violet a meeting.
"""

import collections
import re

_WORD = re.compile(r"[^\W\d_]+")
# Words that are too frequent or too short for a prompt: the number of most
# frequent words, and of characters.
_FREQUENT, _SHORT = 80, 2
# Number of words of a prompt.
_FEWEST, _MOST = 2, 5


def check(config) -> None:
  """Raises a ValueError for shares that are negative or exceed 1."""
  shares = config.keyword_fraction, config.renamed_fraction
  if min(shares) < 0 or sum(shares) > 1:
    raise ValueError(
        f"--config.keyword_fraction={shares[0]} and --config.renamed_fraction="
        f"{shares[1]} must be at least 0, and together at most 1.")


def rewriter(config, completions):
  """Returns `(rng, prompt, completion) -> (prompt, completion)`.

  `completions` of the train split are the source of the words. Of rows beside
  `keyword_fraction` and `renamed_fraction` only the order of the prompt's words
  changes.
  """
  counts = collections.Counter(
      word.lower() for text in completions for word in _WORD.findall(text))
  frequent = {word for word, _ in counts.most_common(_FREQUENT)}
  rare = lambda word: len(word) > _SHORT and word.lower() not in frequent
  others = [word for word, count in counts.items() if count > 1 and rare(word)]

  def rewrite(rng, prompt, completion):
    draw, words = rng.random(), prompt.split()
    found = list(filter(rare, dict.fromkeys(_WORD.findall(completion))))
    if draw < config.keyword_fraction + config.renamed_fraction and (
        len(found) >= _FEWEST):
      size = min(len(found), rng.integers(_FEWEST, _MOST + 1))
      words = [found[i] for i in rng.permutation(len(found))[:size]]
      # A small corpus may have no other words to choose from.
      if others and draw < config.renamed_fraction:
        new = {word: others[rng.integers(len(others))] for word in words}
        completion = _WORD.sub(lambda m: new.get(m[0], m[0]), completion)
        words = list(new.values())
    return " ".join(words[i] for i in rng.permutation(len(words))), completion

  return rewrite
