"""What the calls of CDLH and CDSL let one expect of their times.

A target step is the unit. A draft step costs c_D in [0, 1], a target forward
over the n + 1 tokens of a lookahead c_V in [1, n + 1], and a step of k
roll-outs kappa in [1, k]. Then CDLH costs n kappa a token, and one for the
first; an iteration of CDSL n c_D + c_V, its searches n kappa each, and the
target's own lookaheads one a token (arXiv 2412.10418, section 3). Where a model
has to run for a reward, each costs c_R >= 0.
"""

import itertools
import re

import numpy as np


def sizes(record):
  """(k, n) of a method, from the name in its spec."""
  return tuple(map(int, re.search(r"\((\d+)x(\d+)", record["spec"]).groups()))


def bounds(cdsl, cdlh, priced=False):
  """The least and the most that CDSL can be faster than CDLH.

  Args:
    cdsl: record of `constrained_run.run`, roll-outs by the target.
    cdlh: the same, of the same sizes.
    priced: whether rewards cost anything.

  Returns:
    (least, most), ratios of seconds over the same examples.
  """
  k, n = sizes(cdsl)
  ratios = []
  for c_d, c_v, kappa in itertools.product((0, 1), (1, n + 1), (1, k)):
    ratios.append(_cdlh(cdlh, kappa) / _cdsl(cdsl, n, c_d, c_v, kappa))
  if priced:
    # What it would be if nothing else cost anything.
    ratios.append(sum(cdlh["reward_calls"]) / sum(cdsl["reward_calls"]))
  return min(ratios), max(ratios)


def _cdlh(record, kappa):
  # One forward an example is that of the prompt's last token.
  first = len(record["target_calls"])
  return first + (sum(record["target_calls"]) - first) * kappa


def _cdsl(record, n, c_d, c_v, kappa):
  states = np.sum(record["states"], axis=0)
  iterations, calls = states.sum(), sum(record["target_calls"])
  # Roll-outs are cut short at the end of a text, so there may be fewer.
  rolled = min(n * (states[1] + states[3]), calls - iterations)
  return (c_d * sum(record["draft_calls"]) + c_v * iterations + kappa * rolled
          + calls - iterations - rolled)
