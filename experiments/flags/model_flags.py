"""Which models decode: the flags for a target and its draft."""

from absl import flags

from experiments.devices import model_pair
from models import transformer
from models.transformer import quantization

TARGET = flags.DEFINE_string("target", "python-target",
                             "Folder, hub:owner/name, or name of a shipped "
                             "model.")
_DRAFT = flags.DEFINE_string(
    "draft", "", "The same, for a method that drafts, or lookup: what followed "
    "the same tokens before; '' for what comes with a shipped target.")
_DTYPE = flags.DEFINE_enum("dtype", "", ["", *transformer.DTYPES],
                           "Of parameters and activations; '' as saved.")
_DRAFT_DTYPE = flags.DEFINE_enum("draft_dtype", "", ["", *transformer.DTYPES],
                                 "The same, of the draft; '' as --dtype says.")
_WEIGHTS = flags.DEFINE_enum(
    "weights", quantization.DTYPE, quantization.WEIGHTS,
    "Of matrices: as --dtype "
    "says; bfloat16, which of models that are stored so is exact in float32 "
    "too; or of 8 bits, with a scale for each output channel.")
_DRAFT_WEIGHTS = flags.DEFINE_enum(
    "draft_weights", "", ["", *quantization.WEIGHTS],
    "The same, of the draft; '' as --weights says.")


def drafter(name, methods) -> str:
  """Folder or name of the draft; see `model_pair.drafter`.

  Args:
    name: of the methods, as `--method` has it.
    methods: list of `dj.Method`, which may decode.
  """
  return model_pair.drafter(name, methods, TARGET.value, _DRAFT.value)


def open_pair(draft) -> model_pair.ModelPair:
  """The models, of which no parameters are read; see `model_pair.open_pair`.

  Args:
    draft: of `drafter`.
  """
  return model_pair.open_pair(TARGET.value, draft, _DTYPE.value,
                              _DRAFT_DTYPE.value, _WEIGHTS.value,
                              _DRAFT_WEIGHTS.value)
