"""The first layers of the target, "layers:8", which share its parameters."""

import dataclasses
import pathlib

from experiments.app import launch
from experiments.devices import draft_kind
from models import checkpoints
from models import transformer

HELP = "layers:N, the first N layers of the target"


class Layers(draft_kind.OfTarget):
  """A number of layers."""
  view = staticmethod(transformer.early_exit)
  part = staticmethod(transformer.first_layers)

  def folder(self, target, workdir):
    cut = pathlib.Path(workdir) / f"first_{self.count}"
    with launch.user_errors(OSError, ValueError):
      if not cut.exists():
        config = dataclasses.replace(self.part(
            checkpoints.architecture(target), self.count), scan_layers=False)
        params = checkpoints.load(target, scan_layers=False)[1]
        kept = {f"layer_{i}": params["layers"][f"layer_{i}"]
                for i in range(self.count)}
        checkpoints.to_hf(cut, config, {**params, "layers": kept})
    return cut


def of_name(name):
  return Layers.of_name(name, "layers:", 5, "layers", "layers:8")
