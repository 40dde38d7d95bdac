"""A target and its draft model: opening, checks, loading, digests."""

import dataclasses
import hashlib
import numbers
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
from experiments.devices import draft_names
from experiments.devices import start_tables
from models import checkpoints
from models import prompt_lookup
from models import transformer
from models.huggingface import heads
from models.text import tokenizers
from models.text import vocab_alignment
from models.text import vocab_mapping
from models.transformer import quantization


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


def for_method(pair, method):
  """Returns the pair, without a draft model that a `dj.Method` does not need.

  `draft_params` of such a method are no model's, but what its drafter begins
  with, if there is a start table of it.
  """
  if draft_names.needs_draft(method):
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
  lm = transformer.with_features(config, (config.num_layers,))
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
      (target, draft), pair.dtypes) if draft_names.is_read(name)]


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
  if draft_names.is_read(draft):
    return architecture(draft, *kinds[1])
  if not draft_names.exit_layers(draft):
    return None
  with launch.user_errors(ValueError):
    return transformer.first_layers(architecture(target, *kinds[0]),
                                    draft_names.exit_layers(draft))


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
  draft_names.check_types(draft, dtype, draft_dtype, weights, draft_weights)
  _check_devices()
  names = [target, *([draft] if draft_names.is_read(draft) else [])]
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
  used = tokenizers.used_size(found[0], target.vocab_size)
  vocab_alignment.align(target, None, used)  # Which raises if it has too few.
  if not others:
    if draft == prompt_lookup.NAME:
      return (target, prompt_lookup.language_model(target.vocab_size)), (
          params[0], ())
    if draft_names.exit_layers(draft):
      return (target, _early_exit(draft, configs[0])), (params[0], params[0])
    if draft_names.is_prompts(draft):
      lm, _ = heads.load_prompts(launch.model_folder(draft), configs[0])
      return (lm, None), (lm.abstract_params(), None)
    if draft_names.is_head(draft):
      return _with_head(draft_names.head_folder(draft, folders[0]), configs[0],
                        params[0], head_kind)
    return (target, None), params[:2]
  try:
    tokenizers.check_same(*found)
    # A draft without rows for all tokens of the target is mapped as well.
    return vocab_alignment.align(target, *others, used), params[:2]
  except ValueError:
    lm, own = _mapped(target, others[0], params[1], found, folders)
    return (target, lm), (params[0], own)


def _with_head(folder, config, params, kind):
  """Returns a target that keeps what a head reads, the head, and shapes."""
  dtype, weights = kind
  found = heads.open_folder(folder, config, dtype or None, weights)
  return (transformer.with_features(config, found.kept), found.head), (
      params, found.params)


def _early_exit(draft, config):
  try:
    return transformer.early_exit(config, draft_names.exit_layers(draft))
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
      tokenizers.used_size(found[0], target.vocab_size))
  return (vocab_mapping.mapped(draft, target.vocab_size),
          vocab_mapping.MappedParams(params, table))


def _parameter_ratio(draft, configs, params):
  """Returns parameters of the draft over those of the target."""
  layers = draft_names.exit_layers(draft)
  if layers:
    configs = configs[0], transformer.first_layers(configs[0], layers)
  sizes = [transformer.num_params(transformer.abstract_params(config_))
           for config_ in configs]
  if draft_names.is_head(draft):
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


def with_prompts(pair, target, draft, params):
  """Returns parameters of the target with prompt tokens, if a draft is those.

  Args:
    pair: of `open_pair`.
    target: as there.
    draft: as there.
    params: of the target.
  """
  if not draft_names.is_prompts(draft):
    return params
  with launch.user_errors(OSError, ValueError):
    return {**params, "prompts": heads.load_prompts(
        launch.model_folder(draft), architecture(target, pair.dtypes[0]))[1]}


def with_params(pair, target, draft):
  """Reads the parameters of a pair of `open_pair` from the same folders."""
  def read(name, dtype, weights):
    return checkpoints.load(launch.model_folder(name), dtype=dtype or None,
                            weights=weights)[1]

  kinds = [*zip(pair.dtypes, pair.weights)]
  with launch.user_errors(OSError, ValueError):
    params, own = [read(name, *kind) if draft_names.is_read(name) else None
                   for name, kind in zip((target, draft), kinds)]
    if draft_names.is_head(draft):
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
    return heads.load(draft_names.head_folder(draft, target), config,
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
  if draft_names.exit_layers(draft):
    return target_params
  if isinstance(pair.draft_params, vocab_mapping.MappedParams):
    return pair.draft_params._replace(model=own)
  return pair.draft_params if own is None else own


def check(method, pair, width, max_new_tokens, sampling, reward=None):
  """Raises `UserError` if `dj.generate` would refuse the arguments.

  Args:
    method: a `dj.Method`.
    pair: a `ModelPair`.
    width: tokens of the longest prompt.
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
    argument_checks.check_budget(
        width, max_new_tokens, pair.target,
        argument_checks.limiting_draft(method, pair.draft))
    warper = sampling_lib.make_warper(sampling, 1, pair.target.vocab_size)
    argument_checks.check_temperature(method, warper.greedy,
                                      sampling.temperature)
    argument_checks.check_reward(method, 1, reward, None, None)
  window = pair.draft.max_length if pair.draft else 0
  if 0 < window < width + max_new_tokens:
    logging.warning("The draft model has a context window of %d tokens: past "
                    "it few drafts are accepted.", window)


def check_prompts(pair, prompts, lengths):
  """Raises `UserError` for a token that the target has no row for.

  Args:
    pair: a `ModelPair`.
    prompts: `[B, P]` int32, right-padded.
    lengths: `[B]` int32.
  """
  prompts, size = np.asarray(prompts), pair.target.vocab_size
  inside = np.arange(prompts.shape[1]) < np.asarray(lengths)[:, None]
  for token in prompts[inside & (prompts >= size)]:
    raise launch.UserError(
        f"a prompt has token {token}, {pair.tokenizer.id_to_token(token)!r}, "
        f"of the tokenizer: the target has tokens 0 to {size - 1} alone.")


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
