"""Restores a model onto the devices of several processes, and saves it again.

Run by `test_processes`: folder to read, folder to write, address of the first
process, how many they are, which one this is. Prints whether what is read again
is the same.
"""

import sys

import jax
from jax.sharding import AxisType
import numpy as np

from experiments.app import multihost
from models import checkpoints
from models.transformer import sharding


def main(source, out, coordinator, number, index):
  multihost.join(coordinator, int(number), int(index))
  config = checkpoints.load_config(source)
  mesh = jax.make_mesh((jax.device_count() // 2, 2),
                       (sharding.DATA, sharding.MODEL),
                       axis_types=(AxisType.Auto, AxisType.Auto))
  split = sharding.shardings(config, mesh)
  _, params = checkpoints.load(source, shardings=split)
  checkpoints.save(out, config, params, metadata={"processes": int(number)})
  _, again = checkpoints.load(out, shardings=split)
  same = jax.tree.map(np.array_equal, *map(multihost.on_host, (params, again)))
  print("the same" if all(jax.tree.leaves(same)) else "another")
  multihost.end(0)


if __name__ == "__main__":
  main(*sys.argv[1:])
