"""Builds a target and a draft of any size with a given overlap.

  python -m experiments.synthetic_pair --config=configs/benchmark.py --out=pair

The construction is that of `rivals.random_pair`; sizes and overlap are
the field `pair` of the config.
"""

import pathlib

from absl import flags

from experiments.app import launch
from experiments.rivals import random_pair


def main():
  config = launch.config(CONFIG)
  if not OUT.value:
    raise launch.UserError("--out is empty: the folder to write is needed.")
  if pathlib.Path(OUT.value).exists():
    raise launch.UserError(f"--out={OUT.value} exists already.")
  with launch.user_errors(OSError, ValueError):
    found = random_pair.write(OUT.value, config.pair)
  print(f"{OUT.value}: overlap {found['overlap']:.3f}, perplexity "
        f"{found['perplexity']:.1f}.")


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  CONFIG = launch.define_config("benchmark", "benchmark:smoke")
  OUT = flags.DEFINE_string("out", None, "Folder to write; must not exist.")
  launch.run(main)
