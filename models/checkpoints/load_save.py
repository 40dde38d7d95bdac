"""Models in folders: one folder is all that is needed to run one.

    config.json      architecture, and the version of this layout
    params/          parameters, written by orbax
    digests.json     of each parameter, see `models.checkpoints.digests`
    tokenizer.json   for `models.text.tokenizers`, if there is one
    metadata.json    for people to read, if given
"""

import contextlib
import dataclasses
import functools
import pathlib
import shutil

import jax
from jax.experimental import multihost_utils
import orbax.checkpoint as ocp

from decoding_jax import types
from models import transformer
from models.checkpoints import digests as digests_lib
from models.checkpoints import restore
from models.folders import atomic
from models.folders import json_files
from models.folders import resolve
from models.gguf import files as gguf_files
from models.huggingface import config as hf_config
from models.huggingface import config_fields
from models.huggingface import convert as convert_lib
from models.huggingface import masked as hf_masked
from models.text import tokenizers
from models.transformer import quantization

FORMAT = 1
CONFIG, PARAMS, METADATA = restore.CONFIG, "params", "metadata.json"
_PARTS = (CONFIG, PARAMS, METADATA, digests_lib.FILE, *tokenizers.FILES)
# Of orbax: it says where the folder was written; only object stores read it.
_COMMITTED = "commit_success.txt"

from_hf = convert_lib.from_hf
to_hf = convert_lib.to_hf


def save(folder, config: transformer.Config, params: types.Params,
         tokenizer=None, metadata: dict | None = None) -> None:
  """Writes a model; the folder appears whole or not at all.

  An older model of that name is replaced.

  Args:
    folder: where to.
    config: the architecture.
    params: its parameters. On several hosts every process calls this, and the
      folder is one that all of them see.
    tokenizer: a `tokenizers.Tokenizer` that goes with it, or None.
    metadata: for people to read, written as JSON; or None.

  Raises:
    ValueError: for weights of 8 bits, or if another process is writing there;
      and see `check_replaceable`.
  """
  quantization.check_whole(config.weights, "saved")
  check_replaceable(folder)
  partial, first = atomic.partial(folder), jax.process_index() == 0
  with atomic.locked(folder) if first else contextlib.nullcontext():
    if first:
      shutil.rmtree(partial, ignore_errors=True)
    _meet("nothing is left of an earlier attempt")
    digests = digests_lib.of_all(params)
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(partial / PARAMS, params)
    if first:
      if metadata is not None:
        atomic.write_json(partial / METADATA, metadata)
      if tokenizer is not None:
        tokenizers.save(tokenizer, partial)
      _write_rest(partial, config, digests)
      atomic.replace(folder)
    _meet("the folder is complete")


def check_replaceable(folder, parts=_PARTS) -> None:
  """Raises ValueError if a file is there that no older model has."""
  folder = pathlib.Path(folder)
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"'{folder}' is no folder: no model can be written there.")
  others = sorted(path.name for path in folder.glob("*")
                  if path.name not in parts)
  if others:
    raise ValueError(
        f"'{folder}' has '{others[0]}', which is no part of a model of this "
        "library and would be lost: a new folder, or an older model's, "
        "is needed.")


def _meet(name):
  """Waits for the other processes, if there are any."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def _write_rest(partial, config, digests):
  """Writes what belongs to parameters: their digests and the architecture."""
  digests_lib.write(partial, digests)
  (partial / PARAMS / _COMMITTED).unlink(missing_ok=True)
  atomic.write_json(partial / CONFIG,
                    {"format": FORMAT, **dataclasses.asdict(config)})


def load(folder, *, scan_layers: bool | None = None, dtype: str | None = None,
         weights: str = quantization.DTYPE, shardings=None
         ) -> tuple[types.LanguageModel, types.Params]:
  """Reads a model.

  Args:
    folder: of `save`, or as transformers writes it; a GGUF file; or a name, of
      a shipped model, "hub:owner/name" or "package:name", see `resolve.folder`.
    scan_layers: whether the layers are scanned; None: as they were saved.
    dtype: of parameters and activations; None: as they were saved.
    weights: "dtype"; or "bfloat16", "int8" or "int4", for the matrices of
      `transformer.quantization`. They are rounded to few bits one by one:
      neither host nor devices ever have all of them in another type. Or
      "stored": in the groups of a GGUF file, on one device and unscanned; see
      `weights_of`.
    shardings: `params -> tree of jax.sharding.Sharding`, called with the shapes
      of the parameters, of unrolled and of scanned layers, or of what is made
      of them in 8 bits; None: on the default device.

  Returns:
    A language model and its parameters, all of them finite. Of a folder with
    digests they are those that were saved; read in another type they are first
    read in the folder's, which takes memory for both.

  Raises:
    FileNotFoundError, ValueError: naming the folder, or the file in it, and
      what is missing or wrong.
  """
  folder = resolve.folder(folder)
  weights = weights_of(folder, weights)
  if hf_config.is_hf(folder):
    return from_hf(folder, scan_layers=bool(scan_layers), dtype=dtype,
                   weights=weights, shardings=shardings)
  saved = load_config(folder)
  saved = dataclasses.replace(saved, dtype=dtype or saved.dtype,
                              weights=weights)
  scanned = saved.scan_layers if scan_layers is None else scan_layers
  read = functools.partial(
      restore.params, pathlib.Path(folder).resolve() / PARAMS, saved, shardings)
  config = dataclasses.replace(saved, scan_layers=scanned)
  # Nothing here holds the stacks while they are taken apart.
  return transformer.language_model(config), (
      transformer.unstack_layers(read())
      if saved.scan_layers and not scanned
      else read(stack=scanned and not saved.scan_layers))


def weights_of(folder, weights: str) -> str:
  """Returns the `weights` that `load` gives a model: "dtype" for "stored",
  unless it is a GGUF file, whose outputs are the same to the bit with both."""
  stored = weights == quantization.STORED
  return (quantization.DTYPE if stored and not gguf_files.is_gguf(
      resolve.folder(folder)) else weights)


def load_masked(folder, **options) -> tuple[types.MaskedModel, types.Params]:
  """Reads a masked-diffusion model; `options` as in `load`.

  `folder` has LLaDA, Dream, SDAR or Fast-dLLM v2, or a model that was trained
  here, whose mask is the last entry of its vocabulary. Raises as `load`; and
  ValueError for a folder of transformers of another type.
  """
  folder = resolve.folder(folder)
  lm, params = load(folder, **options)
  if not hf_config.is_hf(folder):
    return types.MaskedModel(lm, lm.vocab_size - 1), params
  return types.MaskedModel(lm, **hf_masked.mask_of(folder)), params


def quantize(config: transformer.Config, params: types.Params
             ) -> tuple[types.LanguageModel, types.Params]:
  """Rounds the weights of a model in memory to 8 bits.

  `params` stay as they are; on a mesh their matrices become such of the same
  parts. Raises ValueError for a reward model.
  """
  config = dataclasses.replace(config, weights=quantization.INT8)
  return transformer.language_model(config), quantization.tree(
      transformer.abstract_params(config), params)


def architecture(folder) -> transformer.Config:
  """Reads the architecture of a model of `load`, and no parameter."""
  folder = resolve.folder(folder)
  if hf_config.is_hf(folder):
    return hf_config.read(folder)
  return load_config(folder)


def convert(folder, out, *, dtype: str | None = None) -> transformer.Config:
  """Writes a Hugging Face folder, or GGUF file, as `save` would, by tensors.

  The folder appears whole or not at all, tokenizer included. Of a model of 1.3
  GB in three files the whole process needs 0.44 GB at its peak. Raises as
  `convert.from_hf`.
  """
  from models.checkpoints import streaming_save  # Few runs need it.
  folder = resolve.folder(folder)
  config, readers = convert_lib.open_folder(folder, dtype=dtype)
  with atomic.replacing(out) as partial:
    if tokenizers.has(folder):
      tokenizers.copy(folder, partial)
    digests = {}
    streaming_save.save(partial / PARAMS, {
        name: functools.partial(_read_digested, digests, name, read)
        for name, read in readers.items()})
    _write_rest(partial, config, digests)
  return config


def export(folder, out, *, dtype: str | None = None) -> transformer.Config:
  """Writes a model of `load` as transformers reads it.

  Raises as `load` and `convert.to_hf`.
  """
  folder = resolve.folder(folder)
  config = architecture(folder)
  config = dataclasses.replace(config, dtype=dtype or config.dtype)
  _, params = load(folder, dtype=dtype)
  with atomic.replacing(out) as partial:
    eos_id = bos_id = None
    if tokenizers.has(folder):
      eos_id = tokenizers.copy(folder, partial)
      tokenizer = tokenizers.load(partial)
      bos_id = tokenizers.bos_id(tokenizer, partial)
      tokenizers.describe(tokenizer, partial)
    convert_lib.write(partial, config, params, eos_id, bos_id)
  return config


def _read_digested(digests, name, read):
  x = read()
  digests[name] = digests_lib.of(x)
  return x


def add_digests(folder) -> None:
  """Writes the digests of a model that was saved without."""
  folder = resolve.folder(folder)
  config = load_config(folder)
  path = pathlib.Path(folder).resolve() / PARAMS
  restore.check_types(path, config)
  digests_lib.write(folder, digests_lib.of_all(
      restore.params(path, config)))


def load_config(folder) -> transformer.Config:
  """Reads the architecture of a model of `save`.

  Raises FileNotFoundError if there is no such model; ValueError naming the
  file, and a field that is unknown, missing, of another type or out of range.
  """
  folder = pathlib.Path(folder)
  path = folder / CONFIG
  if not path.is_file():
    what = f"no {CONFIG} in it" if folder.is_dir() else "no such folder"
    raise FileNotFoundError(f"Checkpoint '{folder}': {what}.")
  fields = json_files.read(path)
  version = fields.pop("format", None)
  if version != FORMAT or type(version) is not int:
    raise ValueError(f"'{path}': format={json_files.shown(version)}; {FORMAT} "
                     "is allowed.")
  with json_files.naming(path):
    return config_fields.architecture(fields)
