"""Finds the fastest method for two models, a batch and this device.

Measures forwards of both models by their number of tokens, and short runs of a
few methods, which also give acceptance rates. From these, `tree_planning`
predicts the rate of every tree, and of autoregressive decoding. The best ones
are tried out beside autoregressive decoding.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import draft_levels
from experiments.devices import mesh
from experiments.timing import forward_cost
from experiments.timing import stopwatch

# Runs that measure acceptance: a chain by depth, siblings by rank, and a beam
# for the gain of width.
_CHAIN = {"name": "speculative", "depth": 5}
_SIBLINGS = {"name": "rsd_c", "branching": (4, 2)}
_BEAM = {"name": "rsd_s", "width": 4, "depth": 3}
_PLAIN = {"name": "autoregressive"}
_RUNS = (_PLAIN, _CHAIN, _SIBLINGS, _BEAM)
_ROUNDS = 6
# Methods of different names to try out; each takes a compilation.
_FINALISTS = 2
# Verifications to try out: one that accepts more may take longer. A chain is
# verified in one pass by either, so only the better one is tried.
_FORMS = {"speculative": ("block",),
          **dict.fromkeys(("rsd_c", "rsd_s", "sequoia"),
                          ("recursive", "traversal"))}
_MOST_TOKENS = 128
_MOST_NODES = 31
_MOST_LEVELS = 8
# Smaller gains are noise.
_MARGIN = 1.02


class Choice(NamedTuple):
  """The chosen method, and the reason.

  Attributes:
    method: the `dj.Method`.
    plan: its `tree_planning.Plan` as measured; rates are of the whole batch.
    predicted: predicted tokens per second.
    plans: predictions for all methods, by falling rate.
    reason: a line of text.
  """
  method: Any
  plan: tree_planning.Plan
  predicted: float
  plans: list[tree_planning.Plan]
  reason: str


class _Run(NamedTuple):
  """A short run: drafter, counts, seconds per step, idle share, tokens/s."""
  drafter: Any
  stats: Any
  seconds: float
  idle: float
  rate: float


def methods():
  """Returns the methods that `choose` runs first, the plain one in front."""
  return [method_specs.read(spec) for spec in _RUNS]


def choose(pair, prompts, lengths, max_new_tokens, sampling,
           batch=None) -> Choice:
  """Measures for some minutes, and chooses the method with the highest rate.

  Args:
    pair: a `model_pair.ModelPair` with parameters.
    prompts: `[R, P]` int32, similar to those that will be decoded.
    lengths: `[R]` int32.
    max_new_tokens: the budget; at most 128 tokens of it are measured.
    sampling: a `dj.Sampling`.
    batch: B, rows decoded together; None for R. Rounds take the prompts in
      turn.

  Returns:
    A `Choice`.

  Raises:
    UserError: for models on a mesh.
  """
  if pair.mesh is not None:
    raise launch.UserError("--method=auto and --mesh: forwards are timed on "
                           "one device only; name a method.")
  budget = min(max_new_tokens, _MOST_TOKENS)
  prompts, lengths = np.asarray(prompts), np.asarray(lengths)
  batch = batch or len(prompts)
  parts = 2 + len(_RUNS) + 1 + _FINALISTS
  with tqdm.tqdm(total=parts, desc="choosing a method", unit="part",
                 leave=False, dynamic_ncols=True) as bar:
    curves = list(_curves(pair, batch, prompts.shape[1], lengths, budget, bar))
    run = functools.partial(_runs, pair, prompts, lengths, budget, sampling,
                            batch, bar)
    plans = _predicted(pair, run(_RUNS), curves, batch)
    finalists = _finalists(plans, np.all(np.asarray(sampling.temperature) == 0))
    bar.total = parts - 1 - _FINALISTS + len(finalists)
    trials = run([plan.spec for plan in finalists])
  return _choice(finalists, list(map(_tried, finalists, trials)), plans)


def _predicted(pair, runs, curves, batch):
  """Predicts plans of all methods for the whole batch, by falling rate."""
  rest = _rest(runs, *curves)
  found = tree_planning.plans(
      _acceptance(runs), tree_planning.Costs(curves[0].at, curves[1].at, rest),
      min(_MOST_NODES, pair.target.vocab_size - 1), _MOST_LEVELS)
  # Rows that have finished wait for the others of their batch.
  busy = 1 - np.mean([run.idle for run in runs[1:]])
  found = [plan._replace(rate=plan.rate * batch * (
      1 if plan.spec == _PLAIN else busy)) for plan in found]
  return sorted(found, key=lambda plan: -plan.rate)


def _finalists(plans, greedy):
  """Returns plans to try: autoregressive decoding and the best other methods.

  Predictions are for verification token by token; for samples the other ways
  are tried as well.
  """
  [plain] = [plan for plan in plans if plan.spec == _PLAIN]
  best = {}
  for plan in plans:
    if plan is not plain:
      best.setdefault(plan.spec["name"], plan)
  best = list(best.values())[:_FINALISTS]
  if greedy:
    return [plain, *best]
  return [plain, *(plan._replace(spec={**plan.spec, "verification": form})
                   for plan in best for form in _FORMS[plan.spec["name"]])]


def _tried(plan, run):
  """Returns the plan with measured tokens, seconds and rate."""
  stats = run.stats
  return plan._replace(
      tokens=float(stats.emitted.sum() / stats.target_calls.sum()),
      seconds=run.seconds, rate=run.rate)


def _choice(finalists, trials, plans) -> Choice:
  """Chooses the best trial; the first one is autoregressive decoding."""
  plain, *others = trials
  best = max(others, key=lambda plan: plan.rate)
  paces = (f"{best.tokens:.2f} tokens a step, which takes "
           f"{best.seconds / plain.seconds:.2f} times as long")
  chosen = best if best.rate >= _MARGIN * plain.rate else plain
  [predicted] = [plan.rate for plan in finalists if plan.spec == chosen.spec]
  method = method_specs.read(chosen.spec)
  reason = (f"{method.name}: {chosen.rate:.1f} tokens/s in a trial, "
            f"{predicted:.1f} were predicted; ")
  if chosen is plain:
    reason += (f"no tree is faster: {method_specs.read(best.spec).name} emits "
               f"{paces}.")
  else:
    reason += (f"{best.rate / plain.rate:.2f} times those of autoregressive "
               f"decoding; {paces}.")
  return Choice(method, chosen, predicted, plans, reason)


def _curves(pair, batch, width, lengths, budget, bar):
  """Yields cost curves of target and draft in the middle of a text."""
  live = int(lengths.max()) + budget // 2
  slots = prefill.capacity(width, budget + _MOST_LEVELS)
  for lm, params in ((pair.target, pair.target_params),
                     (pair.draft, pair.draft_params)):
    yield forward_cost.measure(lm, params, batch, live, slots)
    bar.update()


def _runs(pair, prompts, lengths, budget, sampling, batch, bar, specs):
  """Runs a few methods in turns, round by round."""
  chosen = list(map(method_specs.read, specs))

  def run(method, number):
    keys = jax.random.split(jax.random.key(number), batch)
    rows = (np.arange(batch) + number * batch) % len(prompts)
    return mesh.generate(pair, keys, prompts[rows], lengths[rows],
                         method=method, max_new_tokens=budget,
                         sampling=sampling)

  for method in chosen:
    jax.block_until_ready(run(method, 0))
    bar.update()
  found = [[stopwatch.timed(run, method, number) for method in chosen]
           for number in range(_ROUNDS)]
  return [_of_timings(method, timings)
          for method, timings in zip(chosen, zip(*found))]


def _of_timings(method, timings):
  outs = [out for out, _ in timings]
  stats = jax.tree.map(lambda *rows: np.concatenate(rows),
                       *(out.stats for out in outs))
  steps = np.array([int(out.steps) for out in outs])
  seconds = np.array([s for _, s in timings])
  emitted = stats.emitted.reshape(len(outs), -1)
  busy = stats.target_calls.sum() / (steps.sum() * emitted.shape[1])
  return _Run(method.sampled.drafter, stats,
              float(np.median(seconds / steps)), 1 - busy,
              float(np.median(emitted.sum(axis=1) / seconds)))


def _rest(runs, target, draft):
  """Fits the seconds of a step beside its forwards.

  Each run gives the seconds of a step; the fitted parts, all non-negative, are
  a constant, one per level and one per node.
  """
  # Imported here, so that programs that choose nothing start half a second
  # earlier.
  from scipy import optimize  # pylint: disable=import-outside-toplevel
  layouts = [run.drafter.layout for run in runs]
  sizes = [(1, tree.depth(x), tree.num_nodes(x)) for x in layouts]
  over = [run.seconds - _forwards(run.drafter, target, draft) for run in runs]
  parts, _ = optimize.nnls(np.array(sizes, float), np.array(over))
  return lambda levels, nodes: float(parts @ (1, levels, nodes))


def _forwards(drafter, target, draft):
  """Returns the seconds of the forwards of a step."""
  drafted = tree_planning.draft_tokens(draft_levels.widths(drafter))
  return target.at(1 + tree.num_nodes(drafter.layout)) + sum(
      map(draft.at, drafted))


def _acceptance(runs):
  _, chain, siblings, beam = runs
  extra = siblings.stats.extra
  return tree_planning.acceptance(
      extra["tested_by_rank"].sum(0), extra["accepted_by_rank"].sum(0),
      chain.stats.accepted_by_depth.sum(0), beam.stats.accepted_by_depth.sum(0),
      _BEAM["width"])
