"""Bounds on the speed of CDSL relative to CDLH, from their model calls.

The unit is a target step. A draft step costs c_D in [0, 1], a target forward
over the n + 1 tokens of a lookahead c_V in [1, n + 1], and a step of k
roll-outs kappa in [1, k]. Then CDLH costs n kappa per token, plus one for the
first; CDSL costs n c_D + c_V per iteration, n kappa per search, and one per
token of the target's own lookaheads (arXiv 2412.10418, section 3). A reward
that runs a model costs c_R >= 0.
"""

import itertools
import re

import numpy as np


def sizes(record):
  """Returns (k, n) of a method, from the name in its spec."""
  return tuple(map(int, re.search(r"\((\d+)x(\d+)", record["spec"]).groups()))


def bounds(cdsl, cdlh, priced=False):
  """Returns the least and the largest speed of CDSL relative to CDLH.

  Args:
    cdsl: record of `constrained_run.run`, roll-outs by the target.
    cdlh: record of CDLH with the same sizes.
    priced: whether rewards have a cost.

  Returns:
    (least, most), ratios of seconds over the same examples.
  """
  k, n = sizes(cdsl)
  ratios = []
  for c_d, c_v, kappa in itertools.product((0, 1), (1, n + 1), (1, k)):
    ratios.append(_cdlh(cdlh, kappa) / _cdsl(cdsl, n, c_d, c_v, kappa))
  if priced:
    # The limit of rewards that cost much more than all else.
    ratios.append(sum(cdlh["reward_calls"]) / sum(cdsl["reward_calls"]))
  return min(ratios), max(ratios)


def _cdlh(record, kappa):
  # One forward per example is that of the prompt's last token.
  first = len(record["target_calls"])
  return first + (sum(record["target_calls"]) - first) * kappa


def _cdsl(record, n, c_d, c_v, kappa):
  states = np.sum(record["states"], axis=0)
  iterations, calls = states.sum(), sum(record["target_calls"])
  # Roll-outs are cut short at the end of a text, so there may be fewer.
  rolled = min(n * (states[1] + states[3]), calls - iterations)
  return (c_d * sum(record["draft_calls"]) + c_v * iterations + kappa * rolled
          + calls - iterations - rolled)
