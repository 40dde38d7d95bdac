"""Finds the fastest method for one or two models, a batch and this device.

Measures forwards of both models by their number of tokens, and short runs of a
few methods, which also give acceptance rates. The texts of these runs tell of
other ways to verify, of best-first trees and of drafts without a model; see
`text_estimates`. From all that, `tree_planning` predicts the rate of every
tree, and of autoregressive decoding, and `row_plans` those of rows that share a
budget. The best ones are tried next to autoregressive decoding, and the fastest
is chosen, of the first runs as well.

Of a head on the target's features no forward is timed: its cost is part of what
the runs take besides the target's forwards. Nor do texts show what it drafts:
path verification is assumed to accept as much as node-by-node.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

import decoding_jax as dj
from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from decoding_jax.speculation import verifiers
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import draft_levels
from experiments.devices import mesh
from experiments.devices import tree_memory
from experiments.scoring import text_distributions
from experiments.timing import forward_cost
from experiments.timing import row_plans
from experiments.timing import stopwatch
from experiments.timing import text_estimates

# Runs that measure acceptance: a chain by depth, siblings by rank, and a beam
# for the gain of width.
_CHAIN = {"name": "speculative", "depth": 5}
_SIBLINGS = {"name": "rsd_c", "branching": (4, 2)}
_BEAM = {"name": "rsd_s", "width": 4, "depth": 3}
_PLAIN = {"name": "autoregressive"}
# Drafts without a model.
_RECYCLING = {"name": "token_recycling", "widths": (4, 4, 3), "branching": 4}
_LOOKUP = {"name": "prompt_lookup", "depth": 4, "num_paths": 2, "max_ngram": 3}
_SUFFIX = {"name": "suffix", "nodes": 8, "depth": 8, "num_paths": 8}
# A drafted chain, of the depth of the best one, or copies.
_COPIES = {"name": "copy_or_draft", "copies": 8, "min_ngram": 3, "max_ngram": 8}
_MODEL_FREE = (_RECYCLING, _LOOKUP, _SUFFIX)
# Methods whose children are no samples.
_MATCHED = ("opt_tree", row_plans.NAME, *(spec["name"] for spec in _MODEL_FREE))
_ROUNDS = 6
# Of slow models fewer will do: the runs of a part end after so many seconds,
# but not before two rounds.
_SECONDS = 8
# Methods to try out, each of which takes a compilation: the best ones of
# different names, and of different ways to verify, since one that accepts more
# may take longer.
_NAMES = 2
_FINALISTS = 4
# Texts, and elements of their distributions, from which acceptance is
# estimated.
_TEXTS = 8
_MOST_ELEMENTS = 2**25
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
  """A short run.

  Attributes:
    drafter: of the method.
    stats: counts of all rows.
    seconds: of a step.
    idle: share of row-steps in which a row had finished.
    rate: tokens per second.
    outs: the generations, one a round.
  """
  drafter: Any
  stats: Any
  seconds: float
  idle: float
  rate: float
  outs: list = ()


def methods(draft: Any = True) -> list[dj.Method]:
  """Returns the methods that `choose` runs first, the plain one in front.

  Args:
    draft: a draft model or head; or whether there is one.
  """
  return [method_specs.read(spec) for spec in (*_specs(draft), *_MODEL_FREE)]


def choose(pair, prompts, lengths, max_new_tokens, sampling, batch=None,
           memory_budget=None) -> Choice:
  """Measures for some minutes, and chooses the method with the highest rate.

  Args:
    pair: a `model_pair.ModelPair` with parameters; without a draft model,
      methods that draft without one are tried.
    prompts: `[R, P]` int32, similar to those that will be decoded.
    lengths: `[R]` int32.
    max_new_tokens: the budget; at most 128 tokens of it are measured.
    sampling: a `dj.Sampling`.
    batch: B, rows decoded together; None for R. Rounds take the prompts in
      turn.
    memory_budget: bytes that a run may need by `memory_estimate`; of the trees
      that fit, the smallest ones are taken that keep most of the speed. None
      for no limit.

  Returns:
    A `Choice`.

  Raises:
    UserError: for models on a mesh, or a budget that nothing fits into.
  """
  if pair.mesh is not None:
    raise launch.UserError("--method=auto and --mesh: forwards are timed on "
                           "one device only; name a method.")
  budget = min(max_new_tokens, _MOST_TOKENS)
  prompts, lengths = np.asarray(prompts), np.asarray(lengths)
  batch = batch or len(prompts)
  specs = _specs(pair.draft)
  parts = (len(_timed(pair)) + row_plans.applies(pair, batch) + len(specs) + 1
           + _FINALISTS)
  with tqdm.tqdm(total=parts, desc="choosing a method", unit="part",
                 leave=False, dynamic_ncols=True) as bar:
    curves = list(_curves(pair, batch, prompts.shape[1], lengths, budget, bar))
    run = functools.partial(_runs, pair, prompts, lengths, budget, sampling,
                            batch, bar)
    first = run(specs)
    plans = _predicted(pair, first, curves, batch, lengths, sampling)
    if memory_budget is not None:
      plans = _fitting(plans, pair, batch, prompts.shape[1], max_new_tokens,
                       sampling, memory_budget)
    finalists = _finalists(plans)
    bar.total = parts - 1 - _FINALISTS + len(finalists)
    trials = list(map(_tried, finalists,
                      run([plan.spec for plan in finalists])))
  return _choice([*trials, *_known(plans, trials, specs, first)], plans)


def acceptances(pair, prompts, lengths, max_new_tokens, sampling):
  """Returns what `choose` would know of acceptance, and times nothing.

  Args:
    pair: of two models, and the others, as in `choose`.
    prompts: see there.
    lengths: see there.
    max_new_tokens: see there.
    sampling: see there.

  Returns:
    dict from verification to `tree_planning.Acceptance`.
  """
  specs = _specs(pair.draft)
  with tqdm.tqdm(total=len(specs), desc="measuring acceptance", unit="run",
                 leave=False, dynamic_ncols=True) as bar:
    runs = _runs(pair, prompts, lengths, max_new_tokens, sampling, len(prompts),
                 bar, specs, rounds=1)
  texts = _texts(pair, runs[0].outs[0], lengths, sampling)
  return _acceptances(pair, runs, texts, sampling)


def _predicted(pair, runs, curves, batch, lengths, sampling):
  """Predicts plans of all methods for the whole batch, by falling rate."""
  draft = curves[1].at if len(curves) > 1 else lambda tokens: 0.0
  head = pair.draft if _is_head(pair.draft) else None
  costs = tree_planning.Costs(
      curves[0].at, draft,
      _rest(runs, *curves[:2], forwards=head and head.forwards))
  texts = _texts(pair, runs[0].outs[0], np.resize(lengths, batch), sampling)
  found = tree_planning.plans(
      _acceptances(pair, runs, texts, sampling) if pair.draft else {}, costs,
      min(_MOST_NODES, pair.target.vocab_size - 1), _levels(pair.draft))
  found += [*_with_copies(found, texts, costs, draft_levels.most(pair.draft)),
            *(_without_model(spec, texts, costs) for spec in _MODEL_FREE)]
  if curves[2:] and texts:
    found += row_plans.plans(texts, costs._replace(target=curves[2].at), batch)
  # Rows that have finished wait for the others of their batch.
  busy = 1 - np.mean([run.idle for run in runs[1:] or runs])
  found = [plan._replace(rate=plan.rate * batch * (
      1 if plan.spec == _PLAIN else busy)) for plan in found]
  return sorted(found, key=lambda plan: -plan.rate)


def _acceptances(pair, runs, texts, sampling):
  """Returns the acceptance by verification, measured and estimated."""
  measured = _acceptance(runs)
  if _is_head(pair.draft):
    greedy = np.all(np.asarray(sampling.temperature) == 0)
    return {verifiers.USUAL: measured,
            "match" if greedy else "traversal": measured}
  if not texts:
    return {verifiers.USUAL: measured}
  return text_estimates.acceptances(texts, measured)


def _is_head(draft):
  return isinstance(draft, dj.Head)


def _levels(draft):
  """Returns the levels of the deepest tree to draft."""
  return min(draft_levels.most(draft) or _MOST_LEVELS, _MOST_LEVELS)


def _specs(draft):
  """Returns the runs that measure acceptance, no deeper than a head drafts."""
  if not draft:
    return (_PLAIN,)
  most = _levels(draft)
  return (_PLAIN, {**_CHAIN, "depth": min(_CHAIN["depth"], most)},
          {**_SIBLINGS, "branching": _SIBLINGS["branching"][:most]},
          {**_BEAM, "depth": min(_BEAM["depth"], most)})


def _texts(pair, out, lengths, sampling):
  """Returns texts with distributions along them, of a plain run."""
  models = [(pair.target, pair.target_params, False),
            (None if _is_head(pair.draft) else pair.draft, pair.draft_params,
             True)]
  if any(lm and lm.after_prompt for lm, *_ in models):
    return []  # What a processor does depends on where the prompt ends.
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  written = max(int((ends - lengths).max()), 1)
  count = _MOST_ELEMENTS // (written * pair.target.vocab_size)
  found = []
  for row in range(min(len(tokens), _TEXTS, max(count, 1))):
    text, start = tokens[row, :ends[row]], int(lengths[row])
    target, draft = (
        lm and text_distributions.at(lm, params, sampling, [tokens[row]],
                                     [np.arange(start, len(text))], drafts)
        for lm, params, drafts in models)
    found.append(text_estimates.Text(text, start, target, draft))
  return found


def _without_model(spec, texts, costs):
  """Predicts a method that drafts without a model."""
  layout = method_specs.read(spec).greedy.drafter.layout
  if not texts:
    tokens = 1.0
  elif spec is _RECYCLING:
    tokens = tree_planning.expected_tokens(
        layout.children,
        text_estimates.successor_acceptance(texts, spec["branching"]))
  else:
    tokens = text_estimates.lookup_tokens(texts, spec["depth"],
                                          spec.get("max_ngram", 8))
  seconds = tree_planning.step_seconds(costs, (), tree.num_nodes(layout))
  return tree_planning.Plan(spec, tokens, seconds, tokens / seconds)


def _with_copies(plans, texts, costs, most):
  """Yields the best chain and the best level of siblings that also copy.

  No tree may be deeper than a head drafts: `most` levels, or 0 for no limit.
  """
  if not texts:
    return
  chains = [({"depth": plan.spec["depth"]}, plan) for plan in plans
            if plan.spec["name"] == _CHAIN["name"]]
  siblings = [({"depth": 1, "width": plan.spec["branching"][0]}, plan)
              for plan in plans if plan.spec["name"] == _SIBLINGS["name"]
              and len(plan.spec["branching"]) == 1]
  for group in filter(None, (chains, siblings)):
    sizes, best = max(group, key=lambda found: found[1].rate)
    spec = {**_COPIES, **sizes}
    spec["copies"] = max(min(spec["copies"], most or spec["copies"]),
                         spec["depth"])
    if spec["copies"] == 1 and "width" in spec:
      continue
    tokens, share = text_estimates.copied_steps(texts, spec, best.tokens)
    nodes = spec["copies"] + spec.get("width", 1) - 1
    seconds = share * tree_planning.step_seconds(costs, (), nodes) + (
        1 - share) * best.seconds
    yield tree_planning.Plan(spec, tokens, seconds, tokens / seconds)


def _fitting(plans, pair, batch, prompt_length, budget, sampling, most):
  """Returns the smallest of the fast plans that fit into so many bytes."""
  greedy = np.all(np.asarray(sampling.temperature) == 0)
  size_of = tree_memory.bytes_of(pair, batch, prompt_length, budget, greedy)
  # Nothing needs less than this one.
  tree_memory.smallest([plan for plan in plans if plan.spec == _PLAIN], size_of,
                       most)
  return tree_planning.within_budget(plans, size_of, most)


def _finalists(plans):
  """Returns plans to try: autoregressive decoding and the best others."""
  [plain] = [plan for plan in plans if plan.spec == _PLAIN]
  trees = [plan for plan in plans if plan is not plain]
  found = []
  for key, most in (lambda plan: plan.spec["name"], _NAMES), (
      _rule, _FINALISTS):
    for plan in trees:
      if len(found) < most and key(plan) not in map(key, found):
        found.append(plan)
  return [plain, *found]


def _rule(plan):
  """Returns how a plan is verified."""
  usual = "match" if plan.spec["name"] in _MATCHED else verifiers.USUAL
  rule = plan.spec.get("verification", usual)
  # Block verification of a chain is tried apart from that of trees.
  return rule, rule != usual and plan.spec["name"] == "speculative"


def _tried(plan, run):
  """Returns the plan with measured tokens, seconds and rate."""
  stats = run.stats
  return plan._replace(
      tokens=float(stats.emitted.sum() / stats.target_calls.sum()),
      seconds=run.seconds, rate=run.rate)


def _known(plans, trials, specs, runs):
  """Returns what other plans did that were run at first.

  A fit of four runs is a rough guide, above all to what a head costs; what did
  well in them is not lost. The machine may have another pace by now: theirs is
  given relative to autoregressive decoding, which was in the same rounds.

  Args:
    plans: all that are allowed.
    trials: of the finalists, autoregressive decoding in front.
    specs: of the first runs, autoregressive decoding in front.
    runs: these.
  """
  pace = trials[0].rate / runs[0].rate
  done = [trial.spec for trial in trials]
  found = [_tried(plan, runs[specs.index(plan.spec)]) for plan in plans
           if plan.spec in specs and plan.spec not in done]
  return [trial._replace(seconds=trial.seconds / pace, rate=trial.rate * pace)
          for trial in found]


def _choice(trials, plans) -> Choice:
  """Chooses the best trial; the first one is autoregressive decoding."""
  plain, *others = trials
  predicted = lambda trial: next(
      plan.rate for plan in plans if plan.spec == trial.spec)
  if not others:
    return Choice(method_specs.read(_PLAIN), plain, predicted(plain), plans,
                  f"autoregressive: {plain.rate:.1f} tokens/s in a trial; no "
                  "tree fits into the budget of memory.")
  best = max(others, key=lambda plan: plan.rate)
  paces = (f"{best.tokens:.2f} tokens a step, which takes "
           f"{best.seconds / plain.seconds:.2f} times as long")
  chosen = best if best.rate >= _MARGIN * plain.rate else plain
  method = method_specs.read(chosen.spec)
  reason = (f"{method.name}: {chosen.rate:.1f} tokens/s in a trial, "
            f"{predicted(chosen):.1f} were predicted; ")
  if chosen is plain:
    reason += (f"no tree is faster: {method_specs.read(best.spec).name} emits "
               f"{paces}.")
  else:
    reason += (f"{best.rate / plain.rate:.2f} times those of autoregressive "
               f"decoding; {paces}.")
  return Choice(method, chosen, predicted(chosen), plans, reason)


def _curves(pair, batch, prompt_length, lengths, budget, bar):
  """Yields cost curves of target and draft, and of packed tokens, if any."""
  live = int(lengths.max()) + budget // 2
  slots = prefill.capacity(prompt_length, budget + _MOST_LEVELS)
  for lm, params in _timed(pair):
    yield forward_cost.measure(lm, params, batch, live, slots)
    bar.update()
  if row_plans.applies(pair, batch):
    yield row_plans.curve(pair, batch, live, slots)
    bar.update()


def _timed(pair):
  """Returns the models whose forwards are timed, and their parameters."""
  found = [(pair.target, pair.target_params)]
  if pair.draft and not _is_head(pair.draft):
    found.append((pair.draft, pair.draft_params))
  return found


def _runs(pair, prompts, lengths, budget, sampling, batch, bar, specs,
          rounds=None):
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
  found, begun = [], time.monotonic()
  for number in range(rounds or _ROUNDS):
    if number < 2 or time.monotonic() - begun < _SECONDS:
      found.append([stopwatch.timed(run, method, number) for method in chosen])
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
              float(np.median(emitted.sum(axis=1) / seconds)), outs)


def _rest(runs, target, draft=None, forwards=None):
  """Fits the seconds of a step besides its forwards.

  Each run gives the seconds of a step; the fitted parts, all non-negative, are
  a constant, one per level and one per node; and one per forward of a head,
  whose `forwards` by levels are given.
  """
  # Imported here, so that programs that choose nothing start half a second
  # earlier.
  from scipy import optimize  # pylint: disable=import-outside-toplevel
  layouts = [run.drafter.layout for run in runs]
  of_head = lambda levels: forwards(levels) if forwards and levels else 0
  sizes = [(1, tree.depth(x), tree.num_nodes(x), of_head(tree.depth(x)))
           for x in layouts]
  over = [run.seconds - _forwards(run.drafter, target, draft) for run in runs]
  parts, _ = optimize.nnls(np.array(sizes, float), np.array(over))
  return lambda levels, nodes: float(
      parts @ (1, levels, nodes, of_head(levels)))


def _forwards(drafter, target, draft):
  """Returns the seconds of the forwards of a step."""
  drafted = tree_planning.draft_tokens(draft_levels.widths(drafter))
  return target.at(1 + tree.num_nodes(drafter.layout)) + (sum(
      draft.at(tokens) for tokens in drafted) if draft else 0)


def _acceptance(runs):
  _, chain, siblings, beam = runs
  extra = siblings.stats.extra
  return tree_planning.acceptance(
      extra["tested_by_rank"].sum(0), extra["accepted_by_rank"].sum(0),
      chain.stats.accepted_by_depth.sum(0), beam.stats.accepted_by_depth.sum(0),
      _BEAM["width"])
