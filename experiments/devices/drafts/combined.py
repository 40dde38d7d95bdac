"""Several draft models, "python-draft,lookup": a mixture, or one by one.

The name of this file comes first in order: commas are looked for before all
else.
"""

import dataclasses
import re

from decoding_jax import types
from experiments.app import launch
from experiments.devices import draft_kind
from experiments.devices import drafts
from models import guided
from models.text import vocab_alignment

# Not within the arguments of a function.
_COMMA = re.compile(r",(?![^(]*\))")
HELP = ("several of these with a comma between, which specinfer(models=2) asks "
        "one by one; for other methods they are a mixture")


@dataclasses.dataclass(frozen=True)
class Combined(draft_kind.Draft):
  """Attributes: `parts`, records of draft models."""
  parts: tuple[draft_kind.Draft, ...] = ()

  def check_types(self, source):
    for part in self.parts:
      part.check_types(source)

  def open(self, target):
    opened = []
    for part in self.parts:
      opened.append(part.open(target))
      if not types.has_cache(opened[-1].draft):
        raise launch.UserError(f"--draft={self.name}: '{part}' reads the "
                               "target's cache, and can only draft alone.")
      target = target._replace(lm=opened[-1].target)
    size = target.lm.vocab_size
    return draft_kind.Opened(
        target.lm, target.params, guided.mixture(
            vocab_alignment.cut(x.draft, size) for x in opened),
        tuple(x.draft_params for x in opened), sum(x.size for x in opened))

  def load(self, pair, placing):
    return pair._replace(draft_params=tuple(
        part.load(own, placing).draft_params for part, own in self._each(pair)))

  def on_mesh(self, pair, placing):
    return pair._replace(draft=guided.mixture(
        vocab_alignment.cut(part.on_mesh(own, placing).draft,
                            pair.target.vocab_size)
        for part, own in self._each(pair)))

  def types(self, source):
    return [x for part in self.parts for x in part.types(source)]

  def _each(self, pair):
    """Returns each record with the pair of its own model."""
    return [(part, pair._replace(drafts=part, draft=lm, draft_params=params))
            for part, lm, params in zip(self.parts, pair.draft.models,
                                        pair.draft_params)]


def of_name(name):
  names = _COMMA.split(name)
  if len(names) == 1:
    return None
  parts = tuple(map(drafts.parse, names))
  for part in parts:
    if not part.is_model or part.is_head:
      raise launch.UserError(f"--draft={name}: '{part}' is no draft model, of "
                             "which two or more are needed.")
  return Combined(name, parts)
