"""Assertions that texts have the target's distribution, and its control."""

import math
import statistics
from typing import NamedTuple

import jax
import numpy as np

from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation import tree_decoder
from decoding_jax.testing import exactness, rules, tables
from decoding_jax.types import Method, Pair

# Stated in advance: a right method fails once in 100,000 runs.
MIN_P_VALUE = exactness.MIN_P_VALUE
_MOST_CHILDREN = 3


class Finding(NamedTuple):
  """A test of texts."""
  case: str  # Vocabulary and drafter
  test: str  # What of the texts is compared
  p_value: float  # Of chi-square, times the number of tests
  # Probability whose move between the two most probable outcomes is detected in
  # 39 of 40 runs
  smallest_bias: float

  def __str__(self):
    return f"{self.case}, {self.test}: p={self.p_value:.2g}"


class Report(NamedTuple):
  """The test results of a method or a sampler."""
  name: str  # Of the method or sampler
  node_errors: tuple  # `rules.NodeError`; if there are any, no text was drawn
  findings: tuple  # A `Finding` of each test
  target_calls: float  # Of a text, on average; nan for a sampler

  @property
  def failures(self) -> list:
    """Returns the errors and the failed tests, the worst one first."""
    failed = [x for x in self.findings if x.p_value < MIN_P_VALUE]
    return [*self.node_errors, *sorted(failed, key=lambda x: x.p_value)]

  @property
  def is_exact(self) -> bool:
    """Returns whether chance explains all results."""
    return not self.failures

  @property
  def p_value(self) -> float:
    """Returns the smallest p-value of all tests; nan if no text was drawn."""
    return min((x.p_value for x in self.findings), default=math.nan)

  @property
  def smallest_bias(self) -> float:
    """Returns the smallest bias that some test would have detected."""
    return min((x.smallest_bias for x in self.findings), default=math.nan)

  def __str__(self):
    if self.failures:
      return (f"{self.name}: another distribution than the target's "
              f"(p of at least {MIN_P_VALUE:g} is needed): " +
              "; ".join(map(str, self.failures[:4])))
    return (f"{self.name}: {len(self.findings)} tests of texts agree with the "
            "target's distribution; the smallest bias that one of them would "
            f"have detected is {self.smallest_bias:.2g}")


def assert_exact(subject, target=None, draft=None, **kwargs) -> Report:
  """Raises unless sampled texts have the target's distribution.

  The rule of a pair is first integrated alone, node by node. Then texts are
  drawn, and their beginnings of every length and the tokens after each token
  are compared with the target's, by chi-square with Bonferroni's correction.

  Args:
    subject: a `dj.Method` of temperatures above 0; a `dj.Pair`; or a sampler
      `(key, prompts [B, 1]) -> tokens [B, L]` of what follows the prompts.
    target: `[V, V]`, the distribution of the next token by the last one, which
      a sampler needs; None for several of 2, 3 and 6 tokens.
    draft: `[V, V]` of the drafter; None for some near the target's, nearly
      certain, with zeros and disjoint.
    **kwargs: of `check`.

  Returns:
    The report; its `str` says which bias would have been detected.

  Raises:
    AssertionError: with the tests that failed: the drafter, the position in
      the text, or the node where a rule is wrong.
  """
  report = check(subject, target, draft, **kwargs)
  if not report.is_exact:
    raise AssertionError(str(report))
  return report


def assert_detects(subject, wrong, **kwargs) -> Report:
  """Raises unless a method passes `assert_exact` and a wrong one fails it.

  Args:
    subject: as in `assert_exact`.
    wrong: the same, with an error that the test must be able to see.
    **kwargs: of `assert_exact`, for both.

  Returns:
    The report of the wrong one.
  """
  bias = assert_exact(subject, **kwargs).smallest_bias
  report = check(wrong, **kwargs)
  if report.is_exact:
    raise AssertionError(
        f"{report.name}: not told from the target's distribution; more texts "
        f"are needed for a bias below {bias:.2g}.")
  return report


def check(subject, target=None, draft=None, *, expected=None,
          vocab_sizes=(2, 3, 6), drafters=tables.DRAFTERS, rows: int = 50_000,
          length: int = 4, key=None,
          integrate: bool | None = None, **kwargs) -> Report:
  """Returns the report of `assert_exact`, and raises nothing.

  Args:
    subject, target, draft: see `assert_exact`.
    expected: `[V, V]`, of texts; None for `target`. It differs where
      `sampling` warps the target.
    vocab_sizes: V of tables; those below a node's children are left out.
    drafters: names in `tables.DRAFTERS`.
    rows: texts of each case.
    length: tokens of a text, more than a call emits.
    key: None for a fixed one. Every second case has a key for each row.
    integrate: whether to integrate the rule of a pair; None: if no tables are
      given.
    **kwargs: more arguments of `dj.generate`.
  """
  if isinstance(subject, Pair):
    subject = Method("pair", subject, None)
  name = getattr(subject, "name", getattr(subject, "__name__", "sampler"))
  if integrate is None:
    integrate = target is None
  wrong = _node_errors(subject) if integrate else ()
  if wrong:
    return Report(name, wrong, (), math.nan)
  if target is not None:
    cases = [("given tables", target, target if draft is None else draft)]
  elif isinstance(subject, Method):
    cases = _cases(subject, vocab_sizes, drafters)
  else:
    raise ValueError("target: the table of a sampler is needed.")
  findings, calls = [], []
  for number, (case, *models) in enumerate(cases):
    own = jax.random.fold_in(jax.random.key(0) if key is None else key, number)
    counts, stats = _counts(subject, *models, rows, length,
                            own, number % 2 > 0, kwargs)
    calls.append(math.nan if stats is None else np.mean(stats.target_calls))
    findings += _tests(case, counts, models[0] if expected is None else
                       expected)
  findings = [x._replace(p_value=min(1, x.p_value * len(findings)),
                         smallest_bias=x.smallest_bias(len(findings)))
              for x in findings]
  return Report(name, (), tuple(findings), float(np.mean(calls)))


def _node_errors(subject):
  if not isinstance(subject, Method) or not isinstance(subject.sampled, Pair):
    return ()
  drafter, verifier = subject.sampled
  count = tree_lib.max_branching(drafter.layout)
  if not count or not rules.can_integrate(verifier, drafter.draws):
    return ()
  return tuple(rules.errors(verifier, drafter.draws,
                            min(count, _MOST_CHILDREN)))


def _cases(method, vocab_sizes, drafters):
  if not tree_decoder.decoder_of(method, greedy=False).needs_draft:
    drafters = drafters[:1]
  least = tree_lib.max_branching(method.sampled.drafter.layout) if isinstance(
      method.sampled, Pair) else 0
  sizes = [size for size in vocab_sizes if size >= least] or [least]
  return [(f"{size} tokens, drafter {name!r}", *tables.pair(name, size))
          for size in sizes for name in drafters]


def _counts(subject, target, draft, rows, length, key, by_row, kwargs):
  """Counts of texts `[V] * L`, and `Stats` of a method."""
  key = jax.random.split(key, rows) if by_row else key
  if isinstance(subject, Method):
    return exactness.frequencies(subject, target, draft, rows, length, key,
                                 **kwargs)
  texts = np.asarray(subject(key, np.zeros((rows, 1), np.int32)))
  if texts.ndim != 2 or len(texts) != rows:
    raise ValueError(f"the sampler returned shape {texts.shape}: tokens "
                     f"[{rows}, L] are needed.")
  return exactness.count(texts[:, :length], len(target)), None


def _tests(case, counts, target):
  """Findings whose bias is still a function of the number of tests."""
  length = counts.ndim
  for n in range(1, length + 1):
    yield _finding(case, f"tokens 1 to {n}" if n > 1 else "token 1",
                   *exactness.beginnings(n, counts),
                   exactness.joint_distribution(target, 0, n))
  for before in range(len(target)):
    after = sum(counts.sum(axis=tuple(
        j for j in range(length) if j not in (i, i + 1)))[before]
                for i in range(length - 1))
    if after.sum() and target[before].max() < 1:
      yield _finding(case, f"tokens after token {before}", after,
                     target[before])


def _finding(case, test, observed, probs):
  total, likely = observed.sum(), np.sort(probs, axis=None)[-2:]

  def bias(tests):
    return smallest_bias(np.count_nonzero(probs) - 1, total, likely,
                         MIN_P_VALUE / tests)

  return Finding(case, test, exactness.chi_square(observed, probs), bias)


def smallest_bias(freedom: int, total, likely, level: float) -> float:
  """Returns the shift between two outcomes of probabilities `likely [2]` that
  chi-square detects in 39 of 40 tests of `total` texts; inf of one outcome."""
  if freedom < 1 or likely.min() <= 0:
    return math.inf
  # Wilson and Hilferty's approximation; then two standard deviations more.
  width = 2 / (9 * freedom)
  critical = freedom * (1 - width + statistics.NormalDist().inv_cdf(
      1 - level) * math.sqrt(width))**3
  excess = critical - freedom
  centre = excess + 8
  needed = centre + math.sqrt(max(0, centre**2 - excess**2 + 8 * freedom))
  return math.sqrt(needed / (total * (1 / likely).sum()))
