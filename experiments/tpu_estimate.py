"""The former name of `experiments.estimate`."""

from experiments import estimate
from experiments.app import launch

if __name__ == "__main__":
  launch.run(estimate.main)
