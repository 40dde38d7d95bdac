"""A draft model of its own, perhaps with another tokenizer."""

from absl import logging

from experiments.app import launch
from experiments.devices import draft_kind
from models import checkpoints
from models import transformer
from models.text import tokenizers
from models.text import vocab_alignment
from models.text import vocab_mapping

HELP = "a model named as --target is, which may have another tokenizer"


class Model(draft_kind.Draft):
  """A model in a folder."""

  def open(self, target):
    folder = launch.model_folder(self.name)
    config = self.architecture(target.source)
    draft_kind.check_outputs(folder, config)
    lm = transformer.language_model(config)
    params = checkpoints.abstract_params(folder, config)
    size = transformer.num_params(params)
    if target.tokenizer is None and lm.vocab_size == target.lm.vocab_size:
      return draft_kind.Opened(target.lm, target.params, lm, params, size)
    both = [target.tokenizer or tokenizers.load(target.folder),
            tokenizers.load(folder)]
    try:
      tokenizers.check_same(*both)
      # A draft without rows for all tokens of the target is mapped as well.
      lms = vocab_alignment.align(target.lm, lm, tokenizers.used_size(
          both[0], target.lm.vocab_size))
      return draft_kind.Opened(lms[0], target.params, lms[1], params, size)
    except ValueError:
      table = _table(both, (target.folder, folder), target.lm.vocab_size,
                     lm.vocab_size)
    return draft_kind.Opened(
        target.lm, target.params,
        vocab_mapping.mapped(lm, target.lm.vocab_size),
        vocab_mapping.MappedParams(params, table), size)

  def load(self, pair, placing):
    params, source = pair.draft_params, pair.source
    own = placing.read(self.name, source.dtypes[1], source.weights[1])
    return pair._replace(draft_params=(
        params._replace(model=own)
        if isinstance(params, vocab_mapping.MappedParams) else own))

  def on_mesh(self, pair, placing):
    size = pair.target.vocab_size
    config = self.architecture(pair.source)
    lm = placing.model(transformer.language_model(config), config)
    mapped = isinstance(pair.draft_params, vocab_mapping.MappedParams)
    return pair._replace(draft=(vocab_mapping.mapped if mapped
                                else vocab_alignment.cut)(lm, size))

  def architecture(self, source):
    return draft_kind.architecture(self.name, source.dtypes[1],
                                   source.weights[1])

  def types(self, source):
    return [self.architecture(source).dtype]


def _table(both, folders, target_size, draft_size):
  """Returns how the tokens of two tokenizers go together, with a warning."""
  ends = [tokenizers.eos_id(*x) for x in zip(both, folders)]
  try:
    table = vocab_mapping.table(*both, target_size, draft_size,
                                [] if None in ends else [ends])
  except ValueError as e:
    raise launch.UserError(f"'{folders[0]}' and '{folders[1]}' have different "
                           f"tokenizers: {e}") from e
  logging.warning(
      "'%s' has another tokenizer than the target: it drafts the %d of the "
      "target's %d tokens that it has too.", folders[1], table.common.sum(),
      tokenizers.used_size(both[0], target_size))
  return table
