"""The target on the first and newest tokens of its own cache, "window:512"."""

import dataclasses

from experiments.app import launch
from experiments.devices import draft_kind
from models import transformer

HELP = ("window:N, the target, which sees the first 4 and the newest N tokens "
        "of its own cache")
_PREFIX = "window:"


@dataclasses.dataclass(frozen=True)
class Window(draft_kind.OfTarget):
  """Attributes: `count`, number of newest tokens."""
  count: int = 1

  def open(self, target):
    return draft_kind.Opened(
        target.lm, target.params, self.model(target.config), target.params,
        transformer.num_params(target.params))

  def architecture(self, source):
    return source.architecture()

  def folder(self, target, workdir):
    raise launch.UserError(f"draft={self.name!r} reads the cache of its target:"
                           " there is no model that drafts the same.")

  def model(self, config):
    with launch.user_errors(ValueError):
      return transformer.recent_window(config, self.count)


def of_name(name):
  """Returns the draft if the name is of a window; a `UserError` for no N."""
  count = draft_kind.counted(name, _PREFIX, 7, "tokens", "window:512")
  return None if count is None else Window(name, count)
