"""The target on the first and newest tokens of its own cache, "window:512"."""

from experiments.app import launch
from experiments.devices import draft_kind
from models import transformer

HELP = ("window:N, the target, which sees the first 4 and the newest N tokens "
        "of its own cache")


class Window(draft_kind.OfTarget):
  """A number of newest tokens."""
  view = staticmethod(transformer.recent_window)
  part = staticmethod(lambda config, count: config)

  def folder(self, target, workdir):
    raise launch.UserError(f"draft={self.name!r} reads the cache of its target:"
                           " there is no model that drafts the same.")


def of_name(name):
  return Window.of_name(name, "window:", 7, "tokens", "window:512")
