"""A target and its draft model: opening, checks, loading, digests."""

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
from experiments.devices import draft_kind
from experiments.devices import drafts
from experiments.devices import mesh_shapes
from experiments.devices import start_tables
from models import checkpoints
from models import transformer
from models.text import tokenizers
from models.text import vocab_alignment
from models.transformer import quantization

# Methods whose guesses are those of prompt tokens that are trained.
_PROMPT_TOKENS = "ppd", "lud"


class ModelPair(NamedTuple):
  """A target and its draft model, with the tokenizer of the target."""
  # The model whose distribution is preserved.
  target: dj.LanguageModel
  target_params: Any
  # The draft model or head; None without one. After `open_pair` parameters are
  # shapes.
  draft: dj.LanguageModel | None
  draft_params: Any
  tokenizer: Any
  parameter_ratio: float  # parameters of the draft over the target's
  eos_id: tuple[int, ...] | None = None  # tokens that end a text, or None
  # Of the parameters; None for one device.
  mesh: jax.sharding.Mesh | None = None
  # Where the target is read from, and types of both.
  source: draft_kind.Source = draft_kind.Source()
  # What drafts, of which `draft` was opened.
  drafts: draft_kind.Draft = draft_kind.Draft()
  kept: tuple[int, ...] = ()  # layers whose outputs the target keeps
  # What drafters without a model begin with, a `StartTable`, or None.
  start: start_tables.StartTable | None = None
  # Tokens that prompts begin with in common and caches keep once, at most; see
  # `shared_prefix`.
  share: int = 0


def for_method(pair, method):
  """Returns the pair, without a draft model that a method does not need."""
  # Then `draft_params` are what its drafter begins with, see `start_tables`.
  if draft_kind.needs_draft(method):
    return pair
  return pair._replace(draft=None,
                       draft_params=start_tables.params(pair.start, method))


def with_features(pair, methods):
  """Returns the pair; its target keeps features if a method reads them."""
  if not any(decoder.needs_features for method in methods
             for decoder in tree_decoder.decoders(method)):
    return pair
  config = pair.source.architecture()
  kept = (config.num_layers,)
  return pair._replace(kept=kept, target=vocab_alignment.cut(
      transformer.with_features(config, kept), pair.target.vocab_size))


def types(pair) -> list[str]:
  """Returns the dtypes that the models of a pair of `open_pair` compute in."""
  return [pair.source.architecture().dtype, *pair.drafts.types(pair.source)]


def device_text(mesh) -> str:
  """Names the devices that decode, such as "4 x TPU v5 lite"."""
  devices = [jax.devices()[0]] if mesh is None else [*mesh.devices.flat]
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  return f"{count}{devices[0].device_kind}"


def open_pair(target, draft, dtype="", draft_dtype="", weights="",
              draft_weights="", tokens=True):
  """Opens a target and what drafts for it; parameters are shapes."""
  # `draft` is a name as in `drafts.parse`. `dtype`, `draft_dtype`: "" as saved;
  # `draft_dtype` "" is the target's. `weights` "": as stored on a CPU, that has
  # kernels for it. `draft_weights` "": 8 bits where a head is saved in them,
  # else `weights`. The distribution that is preserved is the target's in this
  # type and format. A draft model with another tokenizer drafts the tokens that
  # both have; a warning says how many. Without `tokens` no tokenizer is read: a
  # config.json is enough.
  for field, value, allowed in (
      ("dtype", dtype, ("", *transformer.DTYPES)),
      ("draft_dtype", draft_dtype, ("", *transformer.DTYPES)),
      ("weights", weights, ("", *quantization.WEIGHTS)),
      ("draft_weights", draft_weights, ("", *quantization.WEIGHTS))):
    launch.check_known(field, [value], allowed)
  draft = drafts.parse(draft)
  draft.check_types(draft_kind.Source(target, (dtype, draft_dtype),
                                      (weights, draft_weights)))
  _check_devices()
  weights = weights or draft_kind.default_weights()
  source = draft_kind.Source(
      target, (dtype, draft_dtype or dtype),
      (weights, draft_weights or draft.saved_weights(target) or weights))
  folder = launch.model_folder(target)
  with launch.user_errors(OSError, ValueError):
    tokenizer = tokenizers.load(folder) if tokens else None
    eos_id = tokens and tokenizers.eos_ids(tokenizer, folder) or None
    config = source.architecture()
    draft_kind.check_outputs(folder, config)
    lm = transformer.language_model(config)
    params = checkpoints.abstract_params(folder, config)
    if tokens:  # Raises if the model has too few.
      vocab_alignment.align(lm, None, tokenizers.used_size(
          tokenizer, lm.vocab_size))
    opened = draft.open(draft_kind.Target(source, folder, config, lm, params,
                                          tokenizer))
    for token in eos_id or ():
      if not 0 <= token < opened.target.vocab_size:
        raise launch.UserError(f"'{folder}': eos_token_id={token}: 0 to "
                               f"{opened.target.vocab_size - 1} is allowed.")
  return ModelPair(
      opened.target, opened.target_params, opened.draft, opened.draft_params,
      tokenizer, opened.size / transformer.num_params(params), eos_id,
      source=source, drafts=draft, kept=opened.kept, start=opened.start)


def of_config(config, draft):
  """Opens the models that the fields of a config name."""
  return open_pair(config.target, draft, config.dtype, config.draft_dtype,
                   config.weights, config.draft_weights)


def settings(pair, *others) -> dict:
  """Returns what results depend on by a pair, and `others` as `fingerprint`."""
  return {"models": fingerprint(pair, *others), "dtypes": types(pair),
          "mesh": mesh_shapes.text(pair.mesh), "shared_tokens": pair.share}


def _check_devices():
  try:
    jax.devices()
  except (AssertionError, RuntimeError) as e:
    raise launch.UserError(
        f"JAX_PLATFORMS={jax.config.jax_platforms}: there is no such device, "
        "or JAX was installed without it, see the extras cuda and tpu"
        f"{f' ({e})' if str(e) else ''}.") from e


def with_params(pair):
  """Reads the parameters of a pair of `open_pair` to one device."""
  def read(name, dtype, weights):
    return draft_kind.params(launch.model_folder(name),
                             draft_kind.architecture(name, dtype, weights))

  source = pair.source
  placing = draft_kind.Placing(
      read, lambda load, shapes: load(), lambda lm, *_: lm)
  with launch.user_errors(OSError, ValueError):
    params = read(source.target, source.dtypes[0], source.weights[0])
    return pair.drafts.load(pair._replace(target_params=params), placing)


def check(method, pair, prompt_length, max_new_tokens, sampling, reward=None):
  """Raises `UserError` if `dj.generate` would refuse the arguments."""
  start_tables.check(pair.start, method, pair.target)
  pair = for_method(pair, method)
  if not isinstance(sampling.temperature, numbers.Real):
    raise launch.UserError(
        f"temperature {sampling.temperature!r} is not a number.")
  name = method.name.partition("(")[0]
  if name in _PROMPT_TOKENS and not pair.target.extra_ids:
    raise launch.UserError(f"method {name} needs a target with trained prompt "
                           "tokens: --draft names their folder (docs/heads.md)."
                           )
  with launch.user_errors(ValueError):
    argument_checks.check_models(method, pair.target, pair.draft)
    argument_checks.check_budget(
        prompt_length, max_new_tokens, pair.target,
        argument_checks.limiting_draft(tree_decoder.decoders(method),
                                       pair.draft))
    warper = sampling_lib.make_warper(sampling, 1, pair.target.vocab_size)
    argument_checks.check_temperature(method, warper.greedy,
                                      sampling.temperature)
    argument_checks.check_reward(method, 1, reward, None, None)
  window = pair.draft.max_length if pair.draft else 0
  if 0 < window < prompt_length + max_new_tokens:
    logging.warning("The draft model has a context window of %d tokens: past "
                    "it few drafts are accepted.", window)


def check_prompts(pair, prompts, lengths):
  """Raises `UserError` for a token of `[B, P]` that the target lacks."""
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
