"""A target and its draft model: opening, checks, loading, digests."""

import dataclasses
import hashlib
import numbers
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import argument_checks
from decoding_jax import sampling as sampling_lib
import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from experiments.app import launch
from experiments.app import multihost
from models import checkpoints
from models import prompt_lookup
from models import transformer
from models.folders import hub
from models.folders import resolve
from models.text import tokenizers
from models.text import vocab_alignment
from models.transformer import quantization


class ModelPair(NamedTuple):
  """A target and its draft model, with the tokenizer that they share.

  Attributes:
    target, target_params: the model whose distribution is preserved.
    draft, draft_params: the draft model; None without one. After `open_pair`
      parameters are shapes.
    tokenizer: of the target.
    parameter_ratio: parameters of the draft over those of the target.
    eos_id: tokens that end a text; None for none.
    mesh: of the parameters; None for one device.
    dtypes, weights: of the target and of the draft, see `open_pair`.
  """
  target: dj.LanguageModel
  target_params: Any
  draft: dj.LanguageModel | None
  draft_params: Any
  tokenizer: Any
  parameter_ratio: float
  eos_id: tuple[int, ...] | None = None
  mesh: jax.sharding.Mesh | None = None
  dtypes: tuple[str, str] = ("", "")
  weights: tuple[str, str] = (quantization.DTYPE,) * 2


def drafter(name, methods, target, draft):
  """Returns folder or name of the draft model that methods need.

  Args:
    name: value of `--method`.
    methods: list of `dj.Method`.
    target: value of `--target`.
    draft: value of `--draft`; "" for the draft model of a shipped target.

  Returns:
    Folder or name; "" if none of the methods needs a draft model.

  Raises:
    UserError: if a draft model is needed and not named.
  """
  if not any(map(needs_draft, methods)):
    return ""
  shipped = target.removesuffix("target") + "draft"
  comes = os.sep not in shipped and (resolve.PRETRAINED / shipped).is_dir()
  if not draft and not comes:
    if not hub.is_hub(target):
      launch.model_folder(target)  # A target that is missing is told first.
    raise launch.UserError(
        f"--method={name} drafts, and no drafter comes with --target={target}: "
        "name a --draft, or use --draft=lookup, which needs no model, or a "
        "method that needs no drafter, such as prompt_lookup or "
        "autoregressive.")
  return draft or shipped


def needs_draft(method) -> bool:
  """Returns whether a `dj.Method` needs a draft model."""
  return any(x.needs_draft for x in tree_decoder.decoders(method))


def for_method(pair, method):
  """Returns the pair, without a draft model that a `dj.Method` does not need.

  `draft_params` of such a method are no model's, but what its drafter begins
  with.
  """
  if needs_draft(method):
    return pair
  return pair._replace(draft=None, draft_params=None)


def architecture(name, dtype="", weights=quantization.DTYPE):
  """Returns the architecture of a model; no parameter is read.

  Args:
    name: see `launch.model_folder`.
    dtype: of parameters and activations; "" as saved.
    weights: format of matrices, one of `quantization.WEIGHTS`.

  Returns:
    A `transformer.Config`.

  Raises:
    UserError, FileNotFoundError, ValueError: if there is no such model or type.
  """
  found = checkpoints.architecture(launch.model_folder(name))
  return dataclasses.replace(found, dtype=dtype or found.dtype,
                             weights=weights)


def types(pair, target, draft) -> list[str]:
  """Returns the dtypes that target and draft compute in; no parameter is read.

  Args:
    pair: of `open_pair`.
    target: folder of the target, or name of a shipped one.
    draft: the same, or as of `open_pair`; one without parameters has no dtype.
  """
  return [architecture(name, dtype).dtype for name, dtype in zip(
      (target, draft), pair.dtypes) if is_read(name)]


def device_text(mesh) -> str:
  """Names the devices that decode, such as "4 x TPU v5 lite".

  Args:
    mesh: of a pair; None for one device.
  """
  devices = [jax.devices()[0]] if mesh is None else [*mesh.devices.flat]
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  return f"{count}{devices[0].device_kind}"


def open_pair(target, draft, dtype="", draft_dtype="",
              weights=quantization.DTYPE, draft_weights=""):
  """Opens two models that share a tokenizer; no parameters are read.

  Args:
    target: folder of `models.checkpoints` or Hugging Face, or the name of a
      shipped model.
    draft: folder or name of the draft; "" for none, `prompt_lookup.NAME` for
      prompt lookup.
    dtype: of parameters and activations of both; "" as saved. The distribution
      that is preserved is the target's in this type.
    draft_dtype: of the draft; "" for `dtype`.
    weights: format of matrices of both, one of `quantization.WEIGHTS`. The
      distribution that is preserved is the target's with these.
    draft_weights: of the draft; "" for `weights`.

  Returns:
    A `ModelPair` with `jax.ShapeDtypeStruct` for parameters.

  Raises:
    UserError: if there is no such model or type, or the tokenizers differ.
  """
  for field, value, allowed in (
      ("dtype", dtype, ("", *transformer.DTYPES)),
      ("draft_dtype", draft_dtype, ("", *transformer.DTYPES)),
      ("weights", weights, quantization.WEIGHTS),
      ("draft_weights", draft_weights, ("", *quantization.WEIGHTS))):
    if value not in allowed:
      raise launch.UserError(f"{field}={value!r} is not one of "
                             f"{', '.join(filter(None, allowed))}.")
  if draft == prompt_lookup.NAME and draft_weights not in ("",
                                                           quantization.DTYPE):
    raise launch.UserError(
        f"draft_weights={draft_weights!r}: draft={draft!r} has no "
        f"weights; leave it {quantization.DTYPE!r} or ''.")
  _check_devices()
  names = [target, *([draft] if is_read(draft) else [])]
  folders = [*map(launch.model_folder, names)]
  dtypes = dtype, draft_dtype or dtype
  formats = weights, draft_weights or weights
  with launch.user_errors(OSError, ValueError):
    tokenizer = _tokenizer(folders)
    eos_id = tokenizers.eos_ids(tokenizer, folders[0]) or None
    configs = [*map(architecture, names, dtypes, formats)]
    for folder, config_ in zip(folders, configs):
      if config_.outputs:
        raise launch.UserError(
            f"'{folder}' is a reward model: outputs="
            f"{config_.outputs}, where a language model has 0.")
    lms = [*map(transformer.language_model, configs), None]
    lms = vocab_alignment.align(*lms[:2], tokenizers.size(tokenizer))
    if draft == prompt_lookup.NAME:
      lms = lms[0], prompt_lookup.language_model(lms[0].vocab_size)
    for token in eos_id or ():
      if not 0 <= token < lms[0].vocab_size:
        raise launch.UserError(f"'{folders[0]}': eos_token_id={token}: 0 to "
                               f"{lms[0].vocab_size - 1} is allowed.")
  params = [*map(transformer.abstract_params, configs),
            () if draft == prompt_lookup.NAME else None]
  sizes = [transformer.num_params(tree) for tree in params]
  return ModelPair(lms[0], params[0], lms[1], params[1], tokenizer,
                   sizes[1] / sizes[0], eos_id, dtypes=dtypes,
                   weights=formats)


def _check_devices():
  """Raises `UserError` if JAX lacks the platform that it was told to use."""
  try:
    jax.devices()
  except (AssertionError, RuntimeError) as e:
    raise launch.UserError(
        f"JAX_PLATFORMS={jax.config.jax_platforms}: there is no such device, "
        "or JAX was installed without it, see the extras cuda and tpu"
        f"{f' ({e})' if str(e) else ''}.") from e


def is_read(draft) -> bool:
  """Returns whether a draft model has parameters, which a folder holds."""
  return draft not in ("", prompt_lookup.NAME)


def _tokenizer(folders):
  """Returns the tokenizer that all of these models have."""
  found = [tokenizers.load(folder) for folder in folders]
  for other, folder in zip(found[1:], folders[1:]):
    try:
      tokenizers.check_same(found[0], other)
    except ValueError as e:
      raise launch.UserError(f"'{folders[0]}' and '{folder}' have different "
                             f"tokenizers: {e}") from e
  return found[0]


def with_params(pair, target, draft):
  """Reads the parameters of a pair of `open_pair` from the same folders."""
  with launch.user_errors(OSError, ValueError):
    params = [
        checkpoints.load(launch.model_folder(name), dtype=dtype or None,
                         weights=weights)[1]
        if is_read(name) else old for name, dtype, weights, old in zip(
            (target, draft), pair.dtypes, pair.weights,
            (pair.target_params, pair.draft_params))]
  return pair._replace(target_params=params[0], draft_params=params[1])


def check(method, pair, width, max_new_tokens, sampling, reward=None):
  """Raises `UserError` if `dj.generate` would refuse the arguments.

  Args:
    method: a `dj.Method`.
    pair: a `ModelPair`.
    width: P, tokens of a prompt.
    max_new_tokens: the budget.
    sampling: a `dj.Sampling`.
    reward: a `dj.Reward`, or None.
  """
  pair = for_method(pair, method)
  if not isinstance(sampling.temperature, numbers.Real):
    raise launch.UserError(
        f"temperature {sampling.temperature!r} is not a number.")
  with launch.user_errors(ValueError):
    argument_checks.check_models(method, pair.target, pair.draft)
    argument_checks.check_budget(width, max_new_tokens, pair.target, pair.draft)
    warper = sampling_lib.make_warper(sampling, 1, pair.target.vocab_size)
    argument_checks.check_temperature(method, warper.greedy,
                                      sampling.temperature)
    argument_checks.check_reward(method, 1, reward, None, None)


def fingerprint(pair, *others):
  """Returns a short digest of the parameters of both models and `others`."""
  return digest_of(pair.target_params, pair.draft_params, *others)


def digest_of(*params):
  """Returns a short digest of trees of parameters."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    # Scanned layers one by one: all at once might not fit on a device.
    places = range(len(leaf)) if leaf.ndim > 2 else [...]
    for at in places:
      digest.update(multihost.on_host(leaf[at]).tobytes())
  return digest.hexdigest()[:16]


def check_logits(out: dj.Generation):
  """Raises `UserError` if logits of the target were NaN."""
  if np.isnan(out.log_probs).any():
    raise launch.UserError(
        "the target's logits are NaN, though its parameters are "
        "finite: its type may have too small a range.")
