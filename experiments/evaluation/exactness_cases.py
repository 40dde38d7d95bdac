"""Cases in which methods have to have the target's distribution, and a control.

With a random draft model, with zero-probability tokens, with a nearly certain
draft model, and at temperature 0, where texts must be the target's greedy ones.
"""

from typing import NamedTuple

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import drafters
from decoding_jax.speculation import expanders
from decoding_jax.speculation import tree_decoder
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from experiments.app import text_tables

# Zero-probability tokens of the target's and of the draft's distributions, and
# the draft's sampling settings; at low temperature it is nearly certain.
_PLAIN = ((0, 0), None)
_DRAWN = {
    "random models": _PLAIN, "tokens of probability zero": ((2, 1), None),
    "nearly certain drafter": ((0, 0), dj.Sampling(temperature=1e-3))}
GREEDY = "temperature 0"
CONTROL = "control"


class Finding(NamedTuple):
  """A line of the table."""
  name: str  # Of the method.
  case: str  # A key of `_DRAWN`, `GREEDY` or `CONTROL`.
  report: dj.testing.Report | None  # None if texts are compared one by one.
  right: bool


def of_methods(methods):
  """Returns (method, case) of all tests, the control last."""
  return [(method, case) for method in methods for case in _cases(method)] + [
      (_control(), CONTROL)]


def find(method, case, vocab_size, rows, length) -> Finding:
  """Tests a method on `rows` texts; one that cannot run is a ValueError."""
  if case == GREEDY:
    return Finding(method.name, case, None,
                   _is_greedy(method, vocab_size, length))
  zeros, draft_sampling = _DRAWN.get(case, _PLAIN)
  target, draft = exactness.random_tables(vocab_size, *zeros)
  report = dj.testing.check(method, target, draft, rows=rows, length=length,
                            draft_sampling=draft_sampling)
  return Finding(method.name, case, report,
                 report.is_exact == (case != CONTROL))


def table(findings) -> str:
  """Formats findings as a table for the terminal."""
  lines = [["method", "case", "p", "smallest bias", "target calls", "right"]]
  for x in findings:
    figures = ["-"] * 3 if x.report is None else [
        f"{x.report.p_value:.2g}",
        f"{x.report.smallest_bias:.4f}", f"{x.report.target_calls:.2f}"]
    lines.append([x.name, x.case, *figures, "yes" if x.right else "NO"])
  return text_tables.plain_table(lines)


def _cases(method):
  """Returns the cases to test a method in, fewer if no model drafts."""
  drafts = method.sampled and tree_decoder.decoder_of(
      method, greedy=False).needs_draft
  return [case for case, (_, draft_sampling) in _DRAWN.items()
          if method.sampled and (drafts or not draft_sampling)] + (
              [GREEDY] if method.greedy else [])


def _control():
  """Returns a wrong method: it treats the most probable tokens as samples."""
  drafter = drafters.of_model(expanders.top_k((2, 2)))
  pair = dj.Pair(drafter, verifiers.recursive(False))
  return dj.Method("control: top-k for samples", pair, None)


def _is_greedy(method, vocab_size, length):
  """Returns whether each token is the target's most probable one."""
  target, draft = exactness.random_tables(vocab_size)
  counts, _ = exactness.frequencies(method, target, draft, 1, length,
                                    sampling=dj.Sampling(temperature=0))
  text = [0]
  for _ in range(length):
    text.append(int(np.argmax(target[text[-1]])))
  return bool(counts[tuple(text[1:])] == 1)
