"""What the mains share: flags, models, methods, one-line errors."""

import contextlib
import dataclasses
import errno
import hashlib
import inspect
import numbers
import os
import pathlib
import re
import signal
import sys
import time
import traceback
from typing import Any, NamedTuple

from absl import app
from absl import flags
from absl import logging
import jax
from ml_collections import config_flags
from ml_collections.config_flags import config_path
import numpy as np

import decoding_jax as dj
from decoding_jax import checks
from decoding_jax import sampling as sampling_lib
from decoding_jax import speculation
from experiments import processes
from experiments import stopping
from models import checkpoints
from models import hub
from models import lookup
from models import named
from models import quantized
from models import tokenizers
from models import transformer
from models import vocabulary

# Of larger ones JAX takes the lowest bits alone: two would give the same texts.
MOST_SEED = 2**32 - 1
# `define_config` defines a flag of the main that calls it, as its --help says.
flags.disclaim_key_flags()
# A disk that is full or read-only is no bug.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class UserError(Exception):
  """Something only the user can mend, told in one line."""


class ModelPair(NamedTuple):
  """A target and its drafter, with the tokenizer that they share.

  Attributes:
    target, target_params: the model whose law is preserved.
    draft, draft_params: the model that drafts; None if there is none.
      Parameters of `open_pair` are their shapes.
    tokenizer: of the target.
    parameter_ratio: parameters of the draft over those of the target.
    eos_id: tokens that end a text, each of them; None if there are none.
    mesh: where the parameters are; None for one device.
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
  weights: tuple[str, str] = (quantized.DTYPE,) * 2


@contextlib.contextmanager
def user_errors(*kinds):
  """Turns exceptions into `UserError`, where user input is interpreted."""
  try:
    yield
  except kinds as e:
    raise UserError(str(e)) from e


def run(main):
  """Runs `main()`; a mistake of the user is one line and exit status 2."""
  def guarded(argv):
    try:
      if len(argv) > 1:
        raise UserError(f"unexpected argument {argv[1]!r}.")
      main()
      stopping.check()
      sys.stdout.flush()
    except UserError as e:
      _fail(e)
    except KeyboardInterrupt:
      print("\ninterrupted; what was written stays.", file=sys.stderr)
      processes.end(130, interrupted=True)
    except stopping.Stopped:
      print("\nstopped; resume with the same command.", file=sys.stderr)
      processes.end(0, interrupted=True)
    except BrokenPipeError:
      # Whoever read the output has left. What is still to be flushed goes
      # nowhere.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      processes.end(128 + signal.SIGPIPE, interrupted=True)
    except jax.errors.JaxRuntimeError as e:
      if not jax.distributed.is_initialized():
        raise
      _fail(processes.failure(e), status=1)
    except Exception as e:
      if isinstance(e, OSError) and e.errno in _DISK:
        _fail(f"{e}; what was written before stays.", status=1)
      if not jax.distributed.is_initialized():
        raise
      traceback.print_exc()
      processes.end(1)

  # XLA reads this when it first compiles. On a CPU, unrolling its loops takes a
  # fifth of a compilation, and gains nothing.
  os.environ.setdefault("XLA_FLAGS", "--xla_backend_extra_options="
                        "xla_cpu_disable_loop_unrolling")
  app.run(guarded, flags_parser=_parse_flags)


def define_config(path, description):
  """The flag `--config`, a file whose fields are flags `--config.<field>`.

  Args:
    path: of the default file.
    description: of the flag.

  Returns:
    Its holder, see `config`.
  """
  try:
    return config_flags.DEFINE_config_file("config", path, description)
  except (IndexError, KeyError, ValueError) as e:
    # ml_collections looks for fields on the command line here already. What a
    # config file raises is none of these errors.
    if pathlib.Path(traceback.extract_tb(e.__traceback__)[-1].filename) != (
        pathlib.Path(config_path.__file__)):
      raise
    given = [x for x in sys.argv[1:] if x.startswith("--config.")]
    _fail(f"{' '.join(given)}: no such part of the config: {e}. What is in a "
          "list or has a number for its name stands in brackets, as in "
          "--config.trees.length['2'][0].")


def config(holder, *fields):
  """The ConfigDict of a config flag; absl defers a missing file until now.

  Args:
    holder: of the flag.
    *fields: that tell the configs of this main from those of others.

  Returns:
    The ConfigDict.

  Raises:
    UserError: if there is no such file, or it is one for another main.
  """
  with user_errors(OSError):
    holder.value.lock()
  for name in fields:
    if name not in holder.value:
      raise UserError(f"--config has no field {name!r}: a config of this "
                      "experiment is needed.")
  return holder.value


def _parse_flags(argv):
  try:
    argv = flags.FLAGS(argv)
    # absl would show INFO, of which orbax has a lot; --verbosity=0 still does.
    if flags.FLAGS["verbosity"].using_default_value:
      flags.FLAGS.verbosity = logging.WARNING
    return argv
  except flags.Error as e:
    # A config file that raises: its own words, not the traceback around them.
    _fail(_root(e) if "Traceback" in str(e) else e)
  except AttributeError as e:
    hint = re.search('Did you mean "([^"]+)"', str(e))
    hint = f"; did you mean {hint[1]!r}?" if hint else "."
    _fail(f"no config field {_root(e)}{hint}")
  except OSError as e:
    _fail(e)


def _root(exception):
  while exception.__cause__ or exception.__context__:
    exception = exception.__cause__ or exception.__context__
  return exception


def _fail(message, status=2):
  line = " ".join(str(message).split())
  print(f"{pathlib.Path(sys.argv[0]).stem}: error: {line}", file=sys.stderr)
  processes.end(status)


def method(spec):
  """A method from its name and sizes.

  Args:
    spec: mapping such as `{"name": "rsd_s", "width": 3, "depth": 4}`.

  Returns:
    A `dj.Method`.

  Raises:
    UserError: for an unknown name, wrong sizes or an impossible tree.
  """
  sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()}
  name = sizes.pop("name", None)
  check_names("method", [name])
  make = getattr(dj.methods, name)
  signature = inspect.signature(make)
  try:
    signature.bind(**sizes)
  except TypeError as e:
    takes = ", ".join(signature.parameters) or "no sizes"
    raise UserError(f"method {name} takes {takes}: {e}.") from e
  with user_errors(ValueError):
    return make(**sizes)


def kinds(methods, temperatures):
  """What decodes by these methods at these temperatures: pairs or decoders."""
  return list(dict.fromkeys(m.sampled if t else m.greedy for m in methods
                            for t in temperatures))


def check_names(what, names, more=()):
  """Raises `UserError` unless these are names of methods, or of `more`."""
  allowed = [*dj.methods.__all__, *more]
  for name in names:
    if name not in allowed:
      raise UserError(f"{what}: {name!r} is not one of {', '.join(allowed)}.")


def check_positive(settings, *names):
  """Raises `UserError` unless these fields of a ConfigDict are positive."""
  for name in names:
    if settings[name] < 1:
      raise UserError(f"--config.{name}={settings[name]}: at least 1 is "
                      "needed.")


def check_seed(settings):
  """Raises `UserError` unless the field `seed` is one of all generators."""
  if not 0 <= settings.seed <= MOST_SEED:
    raise UserError(f"--config.seed={settings.seed}: 0 to {MOST_SEED} is "
                    "allowed.")


def model_folder(name):
  """A folder as it is given, else a shipped model of that name.

  Args:
    name: see `models.named`; one of the hub is downloaded.

  Returns:
    A `pathlib.Path`.

  Raises:
    UserError: if there is neither.
  """
  with user_errors(FileNotFoundError, ValueError):
    return named.folder(name)


def drafter(name, methods, target, draft):
  """The drafter of some methods.

  Args:
    name: of the methods, as `--method` has it.
    methods: list of `dj.Method`.
    target: what `--target` says.
    draft: what `--draft` says; "" for what comes with a shipped target.

  Returns:
    Folder or name; "" if none of the methods drafts.

  Raises:
    UserError: if nobody names the drafter that is needed.
  """
  if not any(speculation.decoder(kind).drafts for method in methods
             for kind in (method.sampled, method.greedy) if kind):
    return ""
  shipped = target.removesuffix("target") + "draft"
  comes = os.sep not in shipped and (named.PRETRAINED / shipped).is_dir()
  if not draft and not comes:
    if not hub.is_hub(target):
      model_folder(target)  # If there is none, that comes first.
    raise UserError(
        f"--method={name} drafts, and no drafter comes with --target={target}: "
        "name a --draft, or take --draft=lookup, which is no model, or "
        "--method=autoregressive.")
  return draft or shipped


def architecture(name, dtype="", weights=quantized.DTYPE):
  """The architecture of a model; no parameter is read.

  Args:
    name: see `model_folder`.
    dtype: of parameters and activations; "" as they were saved.
    weights: of matrices, one of `quantized.WEIGHTS`.

  Returns:
    A `transformer.Config`.

  Raises:
    UserError, FileNotFoundError, ValueError: if there is no such model or type.
  """
  found = checkpoints.architecture(model_folder(name))
  return dataclasses.replace(found, dtype=dtype or found.dtype,
                             weights=weights)


def open_pair(target, draft, dtype="", draft_dtype="",
              weights=quantized.DTYPE, draft_weights=""):
  """Two models that share a tokenizer; their parameters are not read yet.

  Args:
    target: folder of `models.checkpoints` or Hugging Face, or the name of a
      shipped model.
    draft: the same; "" for none, `lookup.NAME` for the one without parameters.
    dtype: of parameters and activations of both; "" as they were saved. What is
      kept is the law of the target in this type.
    draft_dtype: of the draft; "" as `dtype` says.
    weights: of matrices of both, one of `quantized.WEIGHTS`. What is kept is
      the law of the target with these.
    draft_weights: of the draft; "" as `weights` says.

  Returns:
    A `ModelPair` with `jax.ShapeDtypeStruct` for parameters.

  Raises:
    UserError: if there is no such model or type, or the tokenizers differ.
  """
  for field, value, allowed in (
      ("dtype", dtype, ("", *transformer.DTYPES)),
      ("draft_dtype", draft_dtype, ("", *transformer.DTYPES)),
      ("weights", weights, quantized.WEIGHTS),
      ("draft_weights", draft_weights, ("", *quantized.WEIGHTS))):
    if value not in allowed:
      raise UserError(f"{field}={value!r} is not one of "
                      f"{', '.join(filter(None, allowed))}.")
  if draft == lookup.NAME and draft_weights not in ("", quantized.DTYPE):
    raise UserError(f"draft_weights={draft_weights!r}: draft={draft!r} has no "
                    f"weights; leave it {quantized.DTYPE!r} or ''.")
  _check_devices()
  names = [target, *([draft] if is_read(draft) else [])]
  folders = [*map(model_folder, names)]
  dtypes = dtype, draft_dtype or dtype
  kinds_ = weights, draft_weights or weights
  with user_errors(FileNotFoundError, ValueError):
    tokenizer = _tokenizer(folders)
    eos_id = tokenizers.eos_ids(tokenizer, folders[0]) or None
    configs = [*map(architecture, names, dtypes, kinds_)]
    for folder, config_ in zip(folders, configs):
      if config_.outputs:
        raise UserError(f"'{folder}' is a reward model: outputs="
                        f"{config_.outputs}, where a language model has 0.")
    lms = [*map(transformer.language_model, configs), None]
    lms = vocabulary.align(*lms[:2], tokenizers.size(tokenizer))
    if draft == lookup.NAME:
      lms = lms[0], lookup.language_model(lms[0].vocab_size)
    for token in eos_id or ():
      if not 0 <= token < lms[0].vocab_size:
        raise UserError(f"'{folders[0]}': eos_token_id={token}: 0 to "
                        f"{lms[0].vocab_size - 1} is allowed.")
  params = [*map(transformer.abstract_params, configs),
            () if draft == lookup.NAME else None]
  sizes = [transformer.num_params(tree) for tree in params]
  return ModelPair(lms[0], params[0], lms[1], params[1], tokenizer,
                   sizes[1] / sizes[0], eos_id, dtypes=dtypes,
                   weights=kinds_)


def _check_devices():
  """Raises `UserError` if JAX has not the devices that it was told to use."""
  try:
    jax.devices()
  except (AssertionError, RuntimeError) as e:
    raise UserError(
        f"JAX_PLATFORMS={jax.config.jax_platforms}: there is no such device, "
        "or JAX was installed without it, see the extras cuda and tpu"
        f"{f' ({e})' if str(e) else ''}.") from e


def is_read(draft) -> bool:
  """Whether a drafter is in a folder; else it has no parameters, or is none."""
  return draft not in ("", lookup.NAME)


def _tokenizer(folders):
  """The one that all of these models have."""
  found = [tokenizers.load(folder) for folder in folders]
  for other, folder in zip(found[1:], folders[1:]):
    try:
      tokenizers.check_same(found[0], other)
    except ValueError as e:
      raise UserError(f"'{folders[0]}' and '{folder}' have different "
                      f"tokenizers: {e}") from e
  return found[0]


def with_params(pair, target, draft):
  """The pair of `open_pair`, and the parameters from the same folders."""
  with user_errors(FileNotFoundError, ValueError):
    params = [
        checkpoints.load(model_folder(name), dtype=dtype or None,
                         weights=weights)[1]
        if is_read(name) else old for name, dtype, weights, old in zip(
            (target, draft), pair.dtypes, pair.weights,
            (pair.target_params, pair.draft_params))]
  return pair._replace(target_params=params[0], draft_params=params[1])


def check(method_, pair, width, max_new_tokens, sampling, reward=None):
  """Raises `UserError` if `dj.generate` would refuse the arguments.

  Args:
    method_: what decodes.
    pair: a `ModelPair`.
    width: P, tokens of a prompt.
    max_new_tokens: the budget.
    sampling: a `dj.Sampling`.
    reward: a `dj.Reward`, or None.
  """
  if not isinstance(sampling.temperature, numbers.Real):
    raise UserError(f"temperature {sampling.temperature!r} is not a number.")
  with user_errors(ValueError):
    checks.check_models(method_, pair.target, pair.draft)
    checks.check_budget(width, max_new_tokens, pair.target, pair.draft)
    warp = sampling_lib.warp(sampling, 1, pair.target.vocab_size)
    checks.check_temperature(method_, warp.greedy, sampling.temperature)
    checks.check_reward(method_, 1, reward, None, None)


def fingerprint(pair, *others):
  """A short digest of the parameters of both models, and of other trees."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves((pair.target_params, pair.draft_params, *others)):
    # Of scanned layers one after the other, else no device might have room.
    places = range(len(leaf)) if leaf.ndim > 2 else [...]
    for at in places:
      digest.update(processes.on_host(leaf[at]).tobytes())
  return digest.hexdigest()[:16]


def timed(function, *args):
  """(result, seconds) of a call, its computations included."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def decoded(decode, *args):
  """`timed` of what returns a `dj.Generation`.

  Raises:
    UserError: see `check_logits`.
  """
  out, seconds = timed(decode, *args)
  check_logits(out)
  return out, seconds


def check_logits(out: dj.Generation):
  """Raises `UserError` if logits of the target were NaN: a law was none."""
  if np.isnan(out.log_probs).any():
    raise UserError("the target's logits are NaN, though its parameters are "
                    "finite: its type may have too small a range.")
