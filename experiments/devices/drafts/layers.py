"""The first layers of the target, "layers:8", which share its parameters."""

import dataclasses
import pathlib

from experiments.app import launch
from experiments.devices import draft_kind
from models import checkpoints
from models import transformer

HELP = "layers:N, the first N layers of the target"
_PREFIX = "layers:"


@dataclasses.dataclass(frozen=True)
class Layers(draft_kind.OfTarget):
  """Attributes: `count`, number of layers."""
  count: int = 1

  def open(self, target):
    return draft_kind.Opened(
        target.lm, target.params, self.model(target.config), target.params,
        transformer.num_params(transformer.abstract_params(
            transformer.first_layers(target.config, self.count))))

  def architecture(self, source):
    with launch.user_errors(ValueError):
      return transformer.first_layers(source.architecture(), self.count)

  def folder(self, target, workdir):
    cut = pathlib.Path(workdir) / f"first_{self.count}"
    with launch.user_errors(OSError, ValueError):
      if not cut.exists():
        config = dataclasses.replace(transformer.first_layers(
            checkpoints.architecture(target), self.count), scan_layers=False)
        params = checkpoints.load(target, scan_layers=False)[1]
        kept = {f"layer_{i}": params["layers"][f"layer_{i}"]
                for i in range(self.count)}
        checkpoints.to_hf(cut, config, {**params, "layers": kept})
    return cut

  def model(self, config):
    try:
      return transformer.early_exit(config, self.count)
    except ValueError as e:
      raise launch.UserError(f"--draft={self.name}: {e}") from e


def of_name(name):
  """Returns the draft if the name is of layers; raises `UserError` for no N."""
  count = draft_kind.counted(name, _PREFIX, 5, "layers", "layers:8")
  return None if count is None else Layers(name, count)
