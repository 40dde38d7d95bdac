"""A head on the target's features: a folder, or "mtp" in the target's own."""

from experiments.app import launch
from experiments.devices import draft_kind
from models import transformer
from models.huggingface import heads
from models.transformer import quantization
from models.transformer import sharding

HELP = ("a folder of a head on the target's features; mtp, the next-token "
        "module in the target's folder")
_MTP = "mtp"


class Head(draft_kind.Draft):
  """A head, whose target keeps what it reads."""
  is_head = True

  def saved_weights(self, target):
    with launch.user_errors(OSError, ValueError):
      weights = heads.saved_weights(self._folder(target))
    return "" if weights == quantization.DTYPE else weights

  def open(self, target):
    head = heads.open_folder(self._folder(target.source.target), target.config,
                             *_types(target.source))
    return draft_kind.Opened(
        transformer.with_features(target.config, head.kept), target.params,
        head.head, head.params, transformer.num_params(head.params),
        head.kept)

  def load(self, pair, placing):
    source = pair.source
    return pair._replace(draft_params=placing.replicate(
        lambda: heads.load(self._folder(source.target), source.architecture(),
                           *_types(source), pair.target_params).params,
        pair.draft_params))

  def on_mesh(self, pair, placing):
    return pair._replace(draft=sharding.head(pair.draft))

  def _folder(self, target):
    folder = launch.model_folder(target if self.name == _MTP else self.name)
    if folder.is_file():
      raise launch.UserError(f"--draft={self.name}: '{folder}' is a file, "
                             "which has no next-token module: a folder is "
                             "needed.")
    return folder


def _types(source):
  """Returns dtype and format of matrices of a head."""
  weights = source.weights[1]
  return source.dtypes[1] or None, (
      quantization.DTYPE if weights == quantization.STORED else weights)


def of_name(name):
  return Head(name) if name == _MTP else None


def of_folder(name, folder):
  return Head(name) if heads.is_head(folder) else None
