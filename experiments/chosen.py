"""Which models decode: the flags for a target and its draft."""

from absl import flags

from experiments import launch
from models import quantized
from models import transformer

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
    "weights", quantized.DTYPE, quantized.WEIGHTS, "Of matrices: as --dtype "
    "says; bfloat16, which of models that are stored so is exact in float32 "
    "too; or of 8 bits, with a scale for each output channel.")
_DRAFT_WEIGHTS = flags.DEFINE_enum(
    "draft_weights", "", ["", *quantized.WEIGHTS],
    "The same, of the draft; '' as --weights says.")


def drafter(name, methods) -> str:
  """Folder or name of the draft; see `launch.drafter`.

  Args:
    name: of the methods, as `--method` has it.
    methods: list of `dj.Method`, which may decode.
  """
  return launch.drafter(name, methods, TARGET.value, _DRAFT.value)


def open_pair(draft) -> launch.ModelPair:
  """The models, of which no parameters are read yet; see `launch.open_pair`.

  Args:
    draft: of `drafter`.
  """
  return launch.open_pair(TARGET.value, draft, _DTYPE.value,
                          _DRAFT_DTYPE.value, _WEIGHTS.value,
                          _DRAFT_WEIGHTS.value)
