"""The target on the first and newest tokens of its own cache, "window:512"."""

import dataclasses
import re

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
        target.lm, target.params, self._model(target.config), target.params,
        transformer.num_params(target.params))

  def on_mesh(self, pair, place):
    config = pair.source.architecture()
    return pair._replace(draft=place.model(self._model(config), config))

  def architecture(self, source):
    return source.architecture()

  def folder(self, target, workdir):
    raise launch.UserError(f"draft={self.name!r} reads the cache of its target:"
                           " there is no model that drafts the same.")

  def _model(self, config):
    with launch.user_errors(ValueError):
      return transformer.recent_window(config, self.count)


def of_name(name):
  """Returns the draft if the name is of a window; a `UserError` for no N."""
  before, prefix, number = name.partition(_PREFIX)
  if before or not prefix:
    return None
  if not re.fullmatch("[1-9][0-9]{0,6}", number):
    raise launch.UserError(f"--draft={name}: {_PREFIX}N with a number N of "
                           "tokens is needed, such as window:512.")
  return Window(name, int(number))
