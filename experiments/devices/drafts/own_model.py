"""A draft model or head that a function of the user's own returns."""

import dataclasses
from typing import Any

import jax

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import own_code
from experiments.devices import draft_kind
from models import transformer
from models.text import tokenizers
from models.text import vocab_alignment
from models.transformer import sharding

HELP = ("my.module:make(3), a function of one's own that returns a draft model "
        "or head and its parameters")


@dataclasses.dataclass(frozen=True)
class OwnModel(draft_kind.Draft):
  """Attributes: `lm` and `params`, of the tokens of the target's tokenizer;
  `kept`, of a `dj.Head`, layers that it reads, see `with_features`."""
  lm: Any = dataclasses.field(default=None, compare=False, repr=False)
  params: Any = dataclasses.field(default=None, compare=False, repr=False)
  kept: tuple[int, ...] = ()

  @property
  def is_head(self):
    return isinstance(self.lm, dj.Head)

  def open(self, target):
    shapes = jax.eval_shape(lambda: self.params)
    size = transformer.num_params(shapes)
    if self.is_head:
      return draft_kind.Opened(
          transformer.with_features(target.config, self.kept), target.params,
          self.lm, shapes, size, self.kept)
    target_lm, lm = vocab_alignment.align(
        target.lm, self.lm,
        tokenizers.used_size(target.tokenizer, target.lm.vocab_size))
    return draft_kind.Opened(target_lm, target.params, lm, shapes, size)

  def load(self, pair, place):
    return pair._replace(draft_params=place.replicate(lambda: self.params,
                                                      pair.draft_params))

  def on_mesh(self, pair, place):
    return (pair._replace(draft=sharding.head(pair.draft)) if self.is_head
            else pair)


def of_name(name):
  if not own_code.module_of(name):
    return None
  made = method_specs.own_call(name, "--draft")
  if isinstance(made, draft_kind.Draft):
    return made
  if isinstance(made, dj.Drafter):
    raise launch.UserError(f"--draft={name} returns a dj.Drafter, which is a "
                           f"method: --method={name} decodes with it.")
  sizes = {dj.LanguageModel: 2, dj.Head: 3}
  first = type(made[0]) if isinstance(made, tuple) and made else type(made)
  if not isinstance(made, tuple) or sizes.get(first) != len(made):
    raise launch.UserError(
        f"--draft={name} returns an object of type {type(made).__name__}: "
        "(dj.LanguageModel, params) or (dj.Head, params, layers whose outputs "
        "it reads) is needed.")
  return OwnModel(name, *made)
