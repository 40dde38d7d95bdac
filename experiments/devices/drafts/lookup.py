"""Prompt lookup, which copies what followed the same tokens before."""

from experiments.app import launch
from experiments.devices import draft_kind
from models import prompt_lookup
from models.transformer import quantization

HELP = "lookup, which copies what followed the same tokens before"


class Lookup(draft_kind.Draft):
  """Prompt lookup as a draft model; it has no parameters."""

  def check_types(self, source):
    weights = source.weights[1]
    if weights not in ("", quantization.DTYPE):
      raise launch.UserError(
          f"draft_weights={weights!r}: draft={self.name!r} has no weights; "
          f"leave it {quantization.DTYPE!r} or ''.")

  def open(self, target):
    return draft_kind.Opened(
        target.lm, target.params,
        prompt_lookup.language_model(target.lm.vocab_size), ())


def of_name(name):
  return Lookup(name) if name == prompt_lookup.NAME else None
