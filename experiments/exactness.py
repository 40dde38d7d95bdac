"""Tests whether methods preserve the target's distribution.

  python -m experiments.exactness
  python -m experiments.exactness --method="rsd_s(3, 2)"
  python -m experiments.exactness --engine=llama_cpp

Samples texts of tabular models, whose joint distribution is known exactly, with
the drafters of `dj.testing.assert_exact`; and at temperature 0, where texts
must be the target's greedy ones. A control with a wrong distribution must fail.
Takes 10 to 30 seconds per method, mostly for compilation; the exit status is 2
unless all tests pass. `experiments.complete --check_exact` tests texts of your
models. With `--engine` another engine is tested instead of ours, see
`rivals.engine_exactness`.
"""

from typing import NamedTuple

from absl import flags
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import drafters
from decoding_jax.speculation import expanders
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import multihost
from experiments.app import text_tables
from experiments.rivals import engine_exactness
from experiments.rivals import engines

_METHOD = flags.DEFINE_string(
    "method", "", "'' for the examples of all methods that draft and verify. " +
    method_specs.help_text())
_ROWS = flags.DEFINE_integer("rows", 100_000, "Texts of each test, all of "
                             "which are in memory.", lower_bound=1,
                             upper_bound=10**7)
_LENGTH = flags.DEFINE_integer(
    "length", 4, "Tokens of each text; should exceed what one target call "
    "emits.", lower_bound=1, upper_bound=10**4)
_ENGINE = flags.DEFINE_enum(
    "engine", "", ["", *engines.ENGINES], "Another engine to test; '' for "
    "methods of ours.")
_TEXTS = flags.DEFINE_integer(
    "texts", 100, "Texts of 300 tokens that an engine samples.", lower_bound=1)
_VOCAB = flags.DEFINE_integer("vocab_size", 6, "Vocabulary size of the models.",
                              lower_bound=3)

# Number of different texts; each has a count in memory.
_MOST_TEXTS = 10**7
# Tokens of an engine's text.
_TEXT_LENGTH = 300
SAMPLES, GREEDY, CONTROL = "samples", "temperature 0", "control"


class Finding(NamedTuple):
  """A line of the table."""
  name: str  # Of the method.
  case: str
  report: dj.testing.Report | None  # None if texts are compared one by one.
  right: bool


def main():
  if _ENGINE.value:
    return _test_engine(_ENGINE.value)
  if _VOCAB.value**_LENGTH.value > _MOST_TEXTS:
    raise launch.UserError(
        f"--vocab_size={_VOCAB.value} and --length={_LENGTH.value}: these are "
        f"{_VOCAB.value}**{_LENGTH.value} texts, at most {_MOST_TEXTS:.0g} are "
        "allowed.")
  tested = ([method_specs.from_flag(_METHOD.value)] if _METHOD.value else
            exactness.tested_methods())
  parts = [(method, case) for method in tested for case in _cases(method)]
  parts.append((_control(), CONTROL))
  findings = []
  with multihost.progress(len(parts), "test") as bar:
    for method, case in parts:
      bar.set_description(method.name)
      with launch.user_errors(ValueError):
        findings.append(find(method, case, _VOCAB.value, _ROWS.value,
                             _LENGTH.value))
      bar.update()
  print(table(findings))
  wrong = [x for x in findings if not x.right]
  if wrong:
    raise launch.UserError(
        f"{len(wrong)} of {len(findings)} tests failed: "
        f"{'; '.join(map(_error, wrong))}.")
  print(f"All {len(findings) - 1} tests agree with the target's (p > "
        f"{exactness.MIN_P_VALUE:g}), and the control does not.")


def _test_engine(name):
  missing = engines.missing(name)
  if missing:
    raise launch.UserError(
        f"--engine={name}: {', '.join(missing)} is not installed "
        f"({engines.ENGINES[name].hint}).")
  findings = engine_exactness.test(name, _TEXTS.value, _TEXT_LENGTH)
  print(f"{engines.versions(name)}, float32; samples of {_TEXTS.value} texts "
        f"of {_TEXT_LENGTH} tokens, seeds 0 to {_TEXTS.value - 1}.")
  print(engine_exactness.table(findings))
  wrong = [x.name for x in findings if not x.is_right]
  if wrong:
    raise launch.UserError(
        f"{len(wrong)} of {len(findings)} settings failed: {', '.join(wrong)}; "
        f"p of at least {exactness.MIN_P_VALUE:g} is needed, and less of the "
        "control.")


def find(method, case, vocab_size, rows, length) -> Finding:
  """Tests a method on `rows` texts; one that cannot run is a ValueError."""
  if case == GREEDY:
    return Finding(method.name, case, None,
                   _is_greedy(method, vocab_size, length))
  # Of the control, not the rule but the texts must show it.
  report = dj.testing.check(method, vocab_sizes=(vocab_size,), rows=rows,
                            length=length, integrate=case != CONTROL)
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


def _error(finding):
  """Returns what is wrong, where it is; a control is wrong if it is exact."""
  report = finding.report
  return (f"{finding.name}, {finding.case}"
          if report is None or report.is_exact else str(report))


def _cases(method):
  return [case for case, form in ((SAMPLES, method.sampled),
                                  (GREEDY, method.greedy)) if form]


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


if __name__ == "__main__":
  launch.run(main)
