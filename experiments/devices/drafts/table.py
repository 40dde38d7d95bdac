"""A start table, of drafters without a model."""

from experiments.app import launch
from experiments.devices import draft_kind
from experiments.devices import start_tables

HELP = ("a file .npz of experiments.convert, for drafters without a model")


class Table(draft_kind.Draft):
  """A start table of drafters without a model."""
  is_model = False

  def for_methods(self, spec, methods, target):
    if all(map(draft_kind.needs_draft, methods)):
      raise launch.UserError(
          f"--draft={self.name} is a start table, of drafters without a model, "
          f"and --method={spec} needs a draft model.")
    return self

  def open(self, target):
    return draft_kind.Opened(target.lm, target.params, start=start_tables.load(
        self.name, target.tokenizer))


def of_name(name):
  return Table(name) if start_tables.is_file(name) else None
