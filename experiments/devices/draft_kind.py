"""The contract of what drafts: a record that is parsed once from `--draft`.

A type of drafts is a file of `experiments.devices.drafts`, with a subclass of
`Draft`. `model_pair` and `mesh` ask the record, and never its type. What
does not exist or fit is a `UserError`, an `OSError` or a `ValueError`.
"""

import dataclasses
import pathlib
import re
from typing import Any, Callable, NamedTuple

from absl import flags

from decoding_jax import kernels
import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from experiments.app import launch
from models import checkpoints
from models import transformer
from models.folders import hub
from models.transformer import quantization

_AUTO, _ON, _OFF = "auto", "on", "off"
# Up to this many layers are unrolled in any case.
FEW_LAYERS = 8
_SCAN = flags.DEFINE_enum(
    "scan_layers", _AUTO, [_AUTO, _ON, _OFF],
    "Compile one layer, in a loop, instead of all: programs of many layers "
    "compile in a part of the time. auto: on TPUs, with more than "
    f"{FEW_LAYERS} layers; elsewhere layers are as they were saved, which is "
    "unrolled.")


class Source(NamedTuple):
  """Where models are read from, and in which types."""
  # Folder of the target, or name of a shipped one.
  target: str | pathlib.Path = ""
  # Of the target and of the draft, see `model_pair.open_pair`.
  dtypes: tuple[str, str] = ("", "")
  weights: tuple[str, str] = (quantization.DTYPE,) * 2

  def architecture(self) -> transformer.Config:
    """Returns the architecture of the target, see `architecture`."""
    return architecture(self.target, self.dtypes[0], self.weights[0])


class Target(NamedTuple):
  """A target that is open, whose parameters have not been read."""
  source: Source
  folder: pathlib.Path
  config: transformer.Config
  lm: dj.LanguageModel
  params: Any  # shapes of its parameters
  tokenizer: Any


class Opened(NamedTuple):
  """Both models of a pair, of one vocabulary; parameters are shapes."""
  # The target with what the draft needs of it.
  target: dj.LanguageModel
  target_params: Any
  # A draft model or head; None without one.
  draft: dj.LanguageModel | dj.Head | None = None
  draft_params: Any = None
  size: int = 0  # number of parameters that drafting reads
  kept: tuple[int, ...] = ()  # layers of the target that the draft reads
  start: Any = None  # a `start_tables.StartTable`, or None


class Placing(NamedTuple):
  """Where parameters are read to: one device, or a mesh."""
  read: Callable[..., Any]  # `(name, dtype, weights) -> parameters` of a model
  # `(load, shapes) -> parameters`, `load()`'s on all devices; only their shapes
  # where none are read.
  replicate: Callable[..., Any]
  # `(lm, config) -> lm`, as it computes there.
  model: Callable[..., dj.LanguageModel]


@dataclasses.dataclass(frozen=True)
class Draft:
  """A draft for a target; this one is of methods that need nothing."""
  name: str = ""  # as `--draft` has it
  # Not fields: whether it reads features of the target, and whether its
  # parameters are the target's.
  is_head = of_target = False

  def __str__(self):
    return self.name

  @property
  def is_model(self) -> bool:
    """Tells whether it drafts for methods that need a draft model."""
    return bool(self.name)

  def saved_weights(self, target) -> str:
    """Returns a `quantization.WEIGHTS` of its own, or "" for the target's."""
    return ""

  def check_types(self, source: Source):
    """Raises `UserError` for types that the draft cannot have."""

  def for_methods(self, spec: str, methods, target) -> "Draft":
    """Returns what drafts for methods of `--method=spec`, if they need it."""
    if not any(map(needs_draft, methods)):
      return Draft()
    if self.name:
      return self
    # A target that is missing is reported first; a large one is not loaded.
    with launch.user_errors(ValueError):
      if hub.is_hub(target):
        hub.check(target)
      else:
        launch.model_folder(target)
    raise launch.UserError(
        f"--method={spec} drafts, and no drafter comes with --target={target}: "
        "name a --draft, or use --draft=lookup or --draft=layers:N, which need "
        "no other model, or a method that needs no drafter, such as "
        "prompt_lookup or autoregressive.")

  def open(self, target: Target) -> Opened:
    """Opens the draft; no parameters are read."""
    return Opened(target.lm, target.params)

  def load(self, pair, placing: Placing):
    """Returns a pair, whose target has parameters, with the draft's."""
    return pair

  def on_mesh(self, pair, placing: Placing):
    """Returns the pair whose draft computes on a mesh; see `load`."""
    return pair

  def architecture(self, source: Source) -> transformer.Config | None:
    """Returns the architecture; None for a draft that is no transformer."""

  def types(self, source: Source) -> list[str]:
    """Returns the dtype of its own parameters, if it has some, in a list."""
    return []

  def folder(self, target, workdir) -> pathlib.Path:
    """Returns the folder of a model that drafts alike, perhaps in `workdir`."""
    return launch.model_folder(self.name)


@dataclasses.dataclass(frozen=True)
class OfTarget(Draft):
  """A draft with parameters of the target, of a name "<prefix>N"."""
  # A subclass has `view(config, count)`, the model that drafts for a target of
  # this config, and `part(config, count)`, the architecture of what it reads.
  count: int = 1  # the N
  of_target = True

  @classmethod
  def of_name(cls, name: str, prefix: str, digits: int, unit: str,
              example: str) -> "OfTarget | None":
    """Returns the draft of a name; None for one of another prefix."""
    # N has at most `digits` digits and counts `unit`s; `example` is a name.
    if not name.startswith(prefix):
      return None
    number = name.removeprefix(prefix)
    if not re.fullmatch(f"[1-9][0-9]{{0,{digits - 1}}}", number):
      raise launch.UserError(f"--draft={name}: {prefix}N with a number N of "
                             f"{unit} is needed, such as {example}.")
    return cls(name, int(number))

  def check_types(self, source):
    for field, (of_target, value) in (("draft_dtype", source.dtypes),
                                      ("draft_weights", source.weights)):
      if value not in ("", of_target):
        raise launch.UserError(
            f"{field}={value!r}: draft={self.name!r} has the parameters of the "
            f"target; leave it {of_target!r} or ''.")

  def architecture(self, source):
    with launch.user_errors(ValueError):
      return self.part(source.architecture(), self.count)

  def open(self, target):
    return Opened(
        target.lm, target.params, self._model(target.config), target.params,
        transformer.num_params(transformer.abstract_params(
            self.part(target.config, self.count))))

  def load(self, pair, placing):
    return pair._replace(draft_params=pair.target_params)

  def on_mesh(self, pair, placing):
    config = pair.source.architecture()
    return pair._replace(draft=placing.model(self._model(config), config))

  def _model(self, config):
    try:
      return self.view(config, self.count)
    except ValueError as e:
      raise launch.UserError(f"--draft={self.name}: {e}") from e


def needs_draft(method) -> bool:
  """Returns whether a `dj.Method` needs a draft model."""
  return any(x.needs_draft for x in tree_decoder.decoders(method))


def architecture(name, dtype="", weights=quantization.DTYPE):
  """Returns a model's `transformer.Config`; no parameter is read."""
  # `dtype` "" is the file's; layers are scanned as `--scan_layers` says.
  folder = launch.model_folder(name)
  config = checkpoints.architecture(folder)
  weights = checkpoints.weights_of(folder, weights)
  return dataclasses.replace(
      config, dtype=dtype or config.dtype, weights=weights,
      scan_layers=scans_layers(config))


def default_weights() -> str:
  """Returns the format of matrices that no flag names: as stored, where kernels
  read that, unless layers are to be scanned."""
  return (quantization.STORED if kernels.available() and _scan() != _ON
          else quantization.DTYPE)


def params(folder, config, shardings=None):
  """Reads the parameters of an `architecture`, as `shardings` say."""
  return checkpoints.load(folder, scan_layers=config.scan_layers,
                          dtype=config.dtype, weights=config.weights,
                          shardings=shardings)[1]


def scans_layers(config) -> bool:
  """Returns whether layers are scanned: by the flag, or as saved."""
  if _scan() != _AUTO:
    return _scan() == _ON
  return config.scan_layers or (
      config.num_layers > FEW_LAYERS and not config.linear_key_heads
      and kernels.reads_slices())


def _scan():
  # Who imports this without a command line gets the default.
  return _SCAN.value if flags.FLAGS.is_parsed() else _AUTO


def check_outputs(folder, config):
  """Raises `UserError` for a reward model, where a language model is needed."""
  if config.outputs:
    raise launch.UserError(f"'{folder}' is a reward model: outputs="
                           f"{config.outputs}, where a language model has 0.")
