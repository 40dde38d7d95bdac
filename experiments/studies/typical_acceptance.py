"""Measures what typical acceptance gains, and how far off its texts are.

  python -m experiments.studies.typical_acceptance

Of a token that is accepted untested, the total variation between what is
written and the target's distribution p is 1 - p(token); of one that is drawn
from p it is 0. Prints its mean over all tokens beside tokens a target call, for
one tree of the Python pair at temperature 1, 64 held-out prompts.
"""

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.speculation.verifiers import typical_acceptance
from experiments.app import launch
from experiments.app import text_tables
from experiments.data import python_corpus
from experiments.scoring import intervals
from models import checkpoints
from models.text import tokenizers

_BRANCHING = (3, 2, 1, 1)
_ROWS, _LENGTH, _NEW = 64, 32, 48
_EPSILONS = (0.9, 0.5, 0.3, 0.09, 0.01)


def main():
  prompts = np.array(python_corpus.prompts(tokenizers.load("python-target"),
                                           _ROWS, _LENGTH), np.int32)
  lines = [["rule", "tokens a call", "total variation"]]
  for rule in ("recursive", "conditional_ot"):
    calls, _ = measure(dj.methods.rsd_c(_BRANCHING, rule), prompts, False)
    lines.append([rule, calls, "0"])
  for greedy in False, True:
    for epsilon in _EPSILONS:
      pair = verifiers.pair(expanders.top_k(_BRANCHING),
                            typical_acceptance.verifier(epsilon, None, greedy),
                            lossy=True)
      name = f"typical:{epsilon:g}" + ", then the most probable token" * greedy
      lines.append([name, *measure(dj.Method(name, pair, None), prompts,
                                   greedy)])
    print(text_tables.plain_table(lines), flush=True)


def measure(method, prompts, greedy) -> list[str]:
  """Returns tokens a call and total variation, with 95 % intervals by text."""
  target, draft = map(checkpoints.load, ("python-target", "python-draft"))
  run = dj.begin(jax.random.key(0), prompts, np.full(_ROWS, _LENGTH, np.int32),
                 method=method, target=target[0], target_params=target[1],
                 draft=draft[0], draft_params=draft[1], max_new_tokens=_NEW)
  untested = np.zeros((_ROWS, _LENGTH + _NEW), bool)
  ends, order = np.full(_ROWS, _LENGTH), np.arange(_LENGTH + _NEW)
  while not run.done.all():
    run, info = dj.step(run)
    count = info.count if greedy else np.minimum(info.count,
                                                 info.verdict.num_accepted)
    untested |= (order >= ends[:, None]) & (order < (ends + count)[:, None])
    ends = ends + info.count
  out = dj.result(run)
  far = np.where(untested, 1 - np.exp(out.log_probs), 0).sum(axis=1)
  return [text_tables.interval(*intervals.interval(np.asarray(a, float), b, 0))
          for a, b in ((out.stats.emitted, out.stats.target_calls),
                       (far, out.stats.emitted))]


if __name__ == "__main__":
  launch.run(main)
