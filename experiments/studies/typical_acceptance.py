"""Measures what typical acceptance gains, and how far off its texts are.

  python -m experiments.studies.typical_acceptance

Of a token that is accepted untested, the total variation between what is
written and the target's distribution p is 1 - p(token); of one drawn from p it
is 0. Prints its mean over all tokens, for a tree of the Python pair at T = 1.
"""

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.speculation.verifiers import typical_acceptance
from experiments.app import launch, text_tables
from experiments.data import python_corpus
from experiments.scoring import intervals
from models import checkpoints
from models.text import tokenizers

_TREE, _ROWS, _LENGTH, _NEW = (3, 2, 1, 1), 64, 32, 48


def main():
  prompts = np.array(python_corpus.prompts(tokenizers.load("python-target"),
                                           _ROWS, _LENGTH), np.int32)
  exact = measure(dj.methods.rsd_c(_TREE, "conditional_ot"), prompts, False)[0]
  print(f"conditional_ot: {exact} tokens a call, exact", flush=True)
  for epsilon, greedy in ((0.9, False), (0.3, False), (0.09, False),
                          (0.01, False), (0.09, True)):
    pair = verifiers.pair(expanders.top_k(_TREE), typical_acceptance.verifier(
        epsilon, greedy=greedy), lossy=True)
    calls, far = measure(dj.Method("typical", pair, None), prompts, greedy)
    print(f"{epsilon=}, {greedy=}: {calls} a call, {far} off", flush=True)


def measure(method, prompts, greedy) -> list[str]:
  """Returns tokens a call and total variation, with 95 % intervals by text."""
  target, draft = map(checkpoints.load, ("python-target", "python-draft"))
  run = dj.begin(jax.random.key(0), prompts, np.full(_ROWS, _LENGTH, np.int32),
                 method=method, target=target[0], target_params=target[1],
                 draft=draft[0], draft_params=draft[1], max_new_tokens=_NEW)
  untested = np.zeros((_ROWS, _LENGTH + _NEW), bool)
  ends, order = np.full((_ROWS, 1), _LENGTH), np.arange(_LENGTH + _NEW)
  while not run.done.all():
    run, info = dj.step(run)
    count = np.asarray(info.count)[:, None]
    far = count if greedy else np.minimum(count, info.verdict.num_accepted[
        :, None])
    untested |= (order >= ends) & (order < ends + far)
    ends = ends + count
  out = dj.result(run)
  far = np.where(untested, 1 - np.exp(out.log_probs), 0).sum(axis=1)
  return [text_tables.interval(*intervals.interval(np.asarray(a, float), b, 0))
          for a, b in ((out.stats.emitted, out.stats.target_calls),
                       (far, out.stats.emitted))]


if __name__ == "__main__":
  launch.run(main)
