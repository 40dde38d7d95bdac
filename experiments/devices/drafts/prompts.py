"""Trained prompt tokens of `ppd`, which become parameters of the target."""

from experiments.app import launch
from experiments.devices import draft_kind
from models.huggingface import heads

HELP = "a folder of prompt tokens, for ppd"


class Prompts(draft_kind.Draft):
  """Prompt tokens of the target."""

  def for_methods(self, spec, methods, target):
    if any(map(draft_kind.needs_draft, methods)):
      raise launch.UserError(
          f"--draft={self.name} are prompt tokens, of --method=ppd, and "
          f"--method={spec} needs a draft model.")
    return self

  def open(self, target):
    lm, _ = self._read(target.config)
    return draft_kind.Opened(lm, lm.abstract_params())

  def load(self, pair, placing):
    _, prompts = self._read(draft_kind.architecture(
        pair.source.target, pair.source.dtypes[0]))
    return pair._replace(target_params={**pair.target_params,
                                        "prompts": prompts})

  def on_mesh(self, pair, placing):
    raise launch.UserError(f"draft={self.name!r} are prompt tokens, which are "
                           "for one device: leave --mesh empty.")

  def _read(self, config):
    return heads.load_prompts(launch.model_folder(self.name), config)


def of_folder(name, folder):
  return Prompts(name) if heads.is_prompts(folder) else None
