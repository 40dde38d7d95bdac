"""Finds the fastest method for one or two models, a batch and this device.

At most ten candidates decode a few steps at a time, in turn with plain
decoding, for 20 seconds; those that fall far behind the best one leave early.
On a slow machine those are left out that would be compiled after a minute.
"""

import functools
import itertools
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

import decoding_jax as dj
from decoding_jax.runtime import prefill
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from experiments.devices import draft_levels
from experiments.devices import memory_estimate
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.timing import forward_cost
from experiments.timing import stopwatch

PLAIN = "autoregressive"
# Rows up to which nodes of a tree are nearly free on most devices.
_FEW = 4
# By what drafts, and whether few rows are decoded together; those that usually
# win come first.
_CANDIDATES = {
    ("model", True): (
        "speculative(4, traversal)", "rsd_s(2, 3)", "copy_or_draft(4)",
        "speculative(2, traversal)", "speculative(7, traversal)",
        "rsd_s(4, 4)", "opt_tree(8, 3, 4)", "prompt_lookup(4, 2)"),
    ("model", False): (
        "speculative(2, traversal)", "speculative(1)",
        "shared_budget(1, 4, 4)", "speculative(4, traversal)",
        "shared_budget(0.5, 4, 2)", "rsd_s(2, 2)", "prompt_lookup(3)",
        "shared_budget(3, 4, 4)"),
    ("head", True): (
        "speculative(4, traversal)", "copy_or_draft(1, width=3)",
        "rsd_s(2, 3)", "speculative(2, traversal)", "copy_or_draft(4)",
        "rsd_s(4, 4)", "speculative(7, traversal)", "opt_tree(16, 6, 5)",
        "rsd_s(6, 5)"),
    ("head", False): (
        "speculative(2, traversal)", "speculative(1)", "copy_or_draft(2)",
        "speculative(4, traversal)", "rsd_s(2, 2)", "opt_tree(4, 2, 2)",
        "prompt_lookup(3)"),
    ("none", True): (
        "token_recycling((4, 4, 3), 4)", "suffix(8, 8, 8)",
        "prompt_lookup(4, 2)", "prompt_lookup(2)", "prompt_lookup(8)",
        "token_recycling((3, 2, 1), 4)", "suffix(16, 8, 16)"),
    ("none", False): (
        "token_recycling((2, 1), 4)", "prompt_lookup(2)", "prompt_lookup(4)",
        "suffix(4, 4, 4)")}
# Seconds of all samples, and seconds after which no candidate is compiled.
_SECONDS, _COMPILING = 20.0, 60.0
# Of one sample; more steps than _MOST_STEPS would end texts of _TOKENS early.
_SPAN, _MOST_STEPS, _TOKENS = 0.1, 16, 128
_ROUNDS = 24
# A candidate leaves below this share of the best one, after 1, 2, ... rounds.
_LEAVES = (0.3, 0.5, 0.7, 0.8, 0.9)
# Smaller gains over plain decoding are noise.
_MARGIN = 1.02
# Speed for which a smaller tree is taken under --memory_budget.
_KEPT = 0.95


class Choice(NamedTuple):
  """The chosen method, and what was measured."""
  method: dj.Method
  spec: str  # As `method_specs.read` takes it.
  report: str  # A table of all candidates, and a line that says why.


class _Sample(NamedTuple):
  """Steps of a candidate that were timed together; sums over rows."""
  emitted: int
  calls: int
  drafted: int  # Draft forwards.
  accepted: np.ndarray  # `[D + 1]`, calls that accepted 0, 1, ..., D drafts.
  steps: int
  seconds: float


class _Finding(NamedTuple):
  """What samples of a candidate say; ratios and costs are of plain decoding."""
  spec: Any
  method: dj.Method
  acceptance: float
  tokens: float
  draft: float
  step: float
  expected: float
  measured: float
  rate: float


def methods(draft: Any = True, batch: int = 1) -> list[dj.Method]:
  """Returns what `choose` may run; `draft` may be whether there is one."""
  return [method_specs.read(spec) for spec in _specs(draft, batch)]


def choose(pair, prompts, lengths, max_new_tokens, sampling, *, batch=None,
           memory_budget=None) -> Choice:
  """Measures for some seconds, and chooses the method with the highest rate.

  `batch` rows, None for R, take the `prompts` `[R, P]` in turn. Of methods that
  need at most `memory_budget` bytes, the one of fewest bytes is taken that
  keeps 95 % of the speed (SpecMemo, arXiv 2506.01986). Raises `UserError` for
  a budget that nothing fits into, or one on a mesh, or several processes.
  """
  if pair.mesh is not None and (memory_budget or jax.process_count() > 1):
    raise launch.UserError(
        "--method=auto and --mesh: without --memory_budget, and in one process "
        "(each would measure other times), is allowed; or name a method.")
  batch, most = batch or len(prompts), memory_budget or 0
  greedy = np.all(np.asarray(sampling.temperature) == 0)
  sizes = {spec: sum(memory_estimate.estimate(
      pair, launch.decoders([method_specs.read(spec)], [not greedy]), batch,
      prompts.shape[1], max_new_tokens)) if memory_budget else 0
           for spec in _specs(pair.draft, batch, pair.target.packs)}
  if sizes[PLAIN] > most:
    raise launch.UserError(
        f"--memory_budget: {PLAIN} needs about {sizes[PLAIN]:,} bytes at "
        f"least, and there are {memory_budget:,}.")
  specs = [spec for spec, size in sizes.items() if size <= most]
  budget = min(max_new_tokens, _TOKENS)
  start = lambda spec, steps: _samples(
      pair, method_specs.read(spec), prompts, lengths, budget=budget,
      sampling=sampling, batch=batch, steps=steps)
  samples = _measure(start, specs)
  plain = samples[PLAIN]
  cost = _draft_cost(pair, batch, prompts.shape[1], lengths, budget,
                     _step_seconds(plain))
  findings = [_finding(spec, times, plain, cost)
              for spec, times in samples.items()]
  return _choice(findings, sizes)


def _specs(draft, batch, packs=True):
  drafts = ("head" if isinstance(draft, dj.Head) else "model" if draft else
            "none")
  specs = {method_specs.read(PLAIN): PLAIN}
  for text in _CANDIDATES[drafts, batch <= _FEW]:
    spec = _within(text, draft_levels.most(draft))
    if packs or not text.startswith("shared_budget"):
      specs.setdefault(method_specs.read(spec), spec)
  return list(specs.values())


def _within(text, most):
  """Returns a specification of a tree of at most `most` levels; 0: any."""
  name, sizes = method_specs.parse(text)
  if not most or sizes.get("depth", 0) <= most and name != "copy_or_draft":
    return text
  sizes["depth"] = min(sizes["depth"], most)
  if name == "copy_or_draft":
    sizes["copies"] = max(min(8, most), sizes["depth"])
    if sizes["copies"] == 1:
      sizes.pop("width", None)
  return f"{name}({', '.join(f'{x}={y!r}' for x, y in sizes.items())})"


def _measure(start, specs) -> dict:
  """Returns the samples of each candidate of `start`, one a round."""
  with tqdm.tqdm(total=len(specs), desc="compiling candidates", leave=False,
                 dynamic_ncols=True) as bar:
    single = itertools.islice(start(PLAIN, 1), 5)
    steps = int(np.clip(_SPAN / min(x.seconds for x in single), 1, _MOST_STEPS))
    running, begun = {}, time.monotonic()
    for spec in specs:
      if len(running) < 2 or time.monotonic() - begun < _COMPILING:
        running[spec] = start(spec, steps)
        next(running[spec])  # Compiles.
      bar.update()
    times, begun = {spec: [] for spec in running}, time.monotonic()
    bar.set_description("timing candidates")
    for number in range(_ROUNDS):
      for spec, samples in running.items():
        times[spec].append(next(samples))
      rates = {spec: _rate(times[spec]) for spec in running}
      least = max(rates.values()) * _LEAVES[min(number, len(_LEAVES) - 1)]
      running = {spec: samples for spec, samples in running.items()
                 if spec == PLAIN or rates[spec] >= least}
      a_round = (time.monotonic() - begun) / (number + 1)
      rounds = number + 1 if len(running) == 1 else np.clip(
          int(_SECONDS / a_round), number + 1, _ROUNDS)
      bar.total = len(specs) + int(rounds)
      bar.update()
      if rounds == number + 1:
        break
  return times


def _samples(pair, method, prompts, lengths, *, budget, sampling, batch, steps):
  """Yields samples for ever, text after text.

  The first result of a text has its prefill, and the first text's
  compiles: they are left out, as is a last one of fewer steps. On a mesh, whose
  generation is one program, whole texts but the first are samples.
  """
  pair = model_pair.for_method(pair, method)
  for number in itertools.count():
    rows = (np.arange(batch) + number * batch) % len(prompts)
    inputs = (jax.random.split(jax.random.key(number), batch), prompts[rows],
              lengths[rows])
    settings = dict(method=method, max_new_tokens=budget, sampling=sampling,
                    eos_id=pair.eos_id)
    if pair.mesh is not None:
      out, seconds = stopwatch.decoded(
          functools.partial(mesh.generate, pair, *inputs, **settings))
      if number:
        yield _sample(None, out, seconds)
      continue
    outs = dj.stream(
        *inputs, every=steps, target=pair.target, draft=pair.draft,
        target_params=pair.target_params, draft_params=pair.draft_params,
        **settings)
    before, yielded, begin = None, False, time.perf_counter()
    for out in outs:
      sample = _sample(before, out, time.perf_counter() - begin)
      if before is not None and sample.steps == steps:
        yield sample
        yielded = True
      # Whoever asks for samples has timed others in between.
      before, begin = out, time.perf_counter()
    model_pair.check_logits(before)
    # A short text has no such sample, but is the best that there is.
    if not yielded and number:
      yield sample


def _sample(before, after, seconds):
  """Returns what has happened between two results of a stream; None: none."""
  def counts(out):
    stats = out.stats
    return *(np.asarray(x).sum(axis=0) for x in (
        stats.emitted, stats.target_calls, stats.draft_calls,
        stats.accepted_by_depth)), int(out.steps)

  first = (0,) * 5 if before is None else counts(before)
  return _Sample(*(y - x for x, y in zip(first, counts(after))), seconds)


def _rate(samples) -> float:
  return statistics.median(x.emitted / x.seconds for x in samples)


def _step_seconds(samples) -> float:
  return statistics.median(x.seconds / x.steps for x in samples)


def _draft_cost(pair, batch, prompt_length, lengths, budget, plain) -> float:
  # Heads, and drafts on a mesh, run within a step alone: size is their cost.
  if pair.mesh is not None or not isinstance(pair.draft, dj.LanguageModel):
    return pair.parameter_ratio if pair.draft else 0.0
  time_ = forward_cost.timer(
      pair.draft, pair.draft_params, batch, int(np.max(lengths)) + budget // 2,
      prefill.capacity(prompt_length, budget), 1)
  return statistics.median(time_() for _ in range(3)) / plain


def _finding(spec, samples, plain, draft_cost) -> _Finding:
  """Sums samples of a candidate, rounds of plain decoding beside them."""
  method = method_specs.read(spec)
  emitted, calls, drafted = (sum(getattr(x, name) for x in samples)
                             for name in ("emitted", "calls", "drafted"))
  accepted = sum(x.accepted for x in samples)
  at_least = np.cumsum(accepted[::-1])[::-1]
  tokens = emitted / max(calls, 1)
  drafts = draft_cost * drafted / max(calls, 1)
  ratios = [(x.emitted / x.seconds) / (y.emitted / y.seconds)
            for x, y in zip(samples, plain)]
  return _Finding(
      spec, method, float(at_least[1:].sum() / max(at_least[:-1].sum(), 1)),
      tokens, drafts,
      _step_seconds(samples) / _step_seconds(plain),
      tokens / (1 + drafts), statistics.median(ratios),
      _rate(samples))


def _choice(findings, sizes) -> Choice:
  plain, *others = findings
  best = max(others or [plain], key=lambda x: x.measured)
  good = [x for x in others if x.measured >= _KEPT * best.measured]
  if sizes[best.spec]:
    best = min(good or [plain], key=lambda x: sizes[x.spec])
  chosen = best if best.measured >= _MARGIN else plain
  rate = chosen.measured * plain.rate
  reason = f"{chosen.method.name}: {rate:.1f} tokens/s in a trial, "
  if chosen is not plain:
    reason += f"{best.measured:.2f} times the rate of plain decoding."
  elif others:
    reason += f"no other is faster: {best.method.name} has "
    reason += f"{best.measured:.2f} times as many."
  else:
    reason += "nothing else fits into the budget of memory."
  return Choice(chosen.method, chosen.spec, f"{_table(findings)}\n{reason}")


def _table(findings) -> str:
  """Returns a line for each candidate, the fastest first."""
  lines = [["method", "accepted", "tokens a step", "cost of drafts",
            "cost of a step", "expected", "measured"]]
  lines += [[x.method.name, f"{100 * x.acceptance:.0f} %", f"{x.tokens:.2f}",
             f"{x.draft:.2f}", f"{x.step:.2f}", f"{x.expected:.2f}",
             f"{x.measured:.2f}"]
            for x in sorted(findings, key=lambda x: -x.measured)]
  return "\n".join([
      text_tables.plain_table(lines),
      "Costs are in steps of plain decoding; ratios are of its tokens a second,"
      " expected if a tree is scored at the cost of one token."])
