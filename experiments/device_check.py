"""Checks a device that is new: whether it is right, exact and how fast.

  python -m experiments.device_check --workdir=runs/device_check

In one start, on a page of results: what the device is, and how fast it reads
and multiplies; whether greedy texts equal the CPU's; whether every method
keeps the target's distribution, with a control that must not; forwards of a 7 B
target by their number of tokens; rates of methods on a pair of 7 B and 115 M
with random parameters, and how long each took to compile; and the longest
operations of a step. A second start goes on with what has no result, or failed.
The exit status is 2 if something is wrong.
"""

import functools
import json
import pathlib

from absl import flags
import jax

from experiments.app import launch
from experiments.app import preemption
from experiments.benchmarking import device_checks
from experiments.benchmarking import device_page
from experiments.harness import cells
from experiments.harness import store


def main():
  config = launch.config(CONFIG)
  launch.check_positive(config, "vocab_size", "exactness_rows", "rows",
                        "tokens", "prompt_length", "max_new_tokens")
  with launch.user_errors(ValueError):
    checks = device_checks.of_config(config, pathlib.Path(WORKDIR.value))
  preemption.listen()
  workdir = store.open_workdir(WORKDIR.value, json.loads(config.to_json()),
                               timed=True)
  records = cells.run(
      [cells.Cell({"check": name}, functools.partial(_tried, check), name)
       for name, check in checks.items()], workdir / store.RESULTS,
      unit="check")
  page = device_page.markdown(records)
  (workdir / "summary.md").write_text(page, "utf-8")
  print(page)
  print(f"{workdir}: summary.md, {store.RESULTS}, {store.RUN}")
  wrong = [x["check"] for x in records if not x.get("right", True)]
  if wrong:
    raise launch.UserError(
        f"{len(wrong)} of {len(records)} checks failed: {'; '.join(wrong)}.")


def _tried(check, *_):
  """Returns the record of a check; one that fails does not end the others."""
  try:
    return check()
  except (jax.errors.JaxRuntimeError, launch.UserError, ValueError) as e:
    return {"right": False, "error": str(e).strip().partition("\n")[0]}


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  CONFIG = launch.define_config("device_check", "device_check:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/device_check",
                                "Folder of the results; another start goes on.")
  launch.run(main)
