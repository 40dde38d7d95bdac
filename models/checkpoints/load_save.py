"""Models in folders: one folder is all that is needed to run one.

    config.json      architecture, and the version of this layout
    params/          parameters, written by orbax
    tokenizer.json   for `models.text.tokenizers`, if there is one
    metadata.json    how the model came about, if somebody told
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from decoding_jax import types
from models import transformer
from models.checkpoints import streaming_save
from models.folders import atomic
from models.folders import resolve
from models.huggingface import config as hf_config
from models.huggingface import convert as convert_lib
from models.text import tokenizers
from models.transformer import quantization

FORMAT = 1
CONFIG, PARAMS, METADATA = "config.json", "params", "metadata.json"
_PARTS = (CONFIG, PARAMS, METADATA, *tokenizers.FILES)
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
    metadata: for people to read, as JSON, or None.

  Raises:
    ValueError: for weights of 8 bits; and see `check_replaceable`.
  """
  quantization.check_whole(config.weights, "saved")
  check_replaceable(folder)
  partial, first = atomic.partial(folder), jax.process_index() == 0
  if first:
    shutil.rmtree(partial, ignore_errors=True)
  _meet("nothing is left of an earlier attempt")
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(partial / PARAMS, params)
  if first:
    _write_rest(folder, partial, config, tokenizer, metadata)
  _meet("the folder is complete")


def check_replaceable(folder) -> None:
  """Checks that nothing but an older model is lost where one is written.

  Args:
    folder: of `save`.

  Raises:
    ValueError: naming what is there and is no part of a model.
  """
  folder = pathlib.Path(folder)
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"'{folder}' is no folder: no model can be written there.")
  others = sorted(path.name for path in folder.glob("*")
                  if path.name not in _PARTS)
  if others:
    raise ValueError(
        f"'{folder}' has '{others[0]}', which is no part of a model of this "
        "library and would be lost: a new folder, or that of an older model, "
        "is needed.")


def _meet(name):
  """Waits for the other processes, if there are any."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def _write_rest(folder, partial, config, tokenizer, metadata):
  """Completes what `save` has begun, and gives it its name."""
  (partial / PARAMS / _COMMITTED).unlink(missing_ok=True)
  _write_config(partial, config)
  if metadata is not None:
    atomic.write_json(partial / METADATA, metadata)
  if tokenizer is not None:
    tokenizers.save(tokenizer, partial)
  atomic.replace(folder)


def load(folder, *, scan_layers: bool | None = None, dtype: str | None = None,
         weights: str = quantization.DTYPE, shardings=None
         ) -> tuple[types.LanguageModel, types.Params]:
  """Reads a model.

  Args:
    folder: of `save`, or as transformers writes it; or a name, of a shipped
      model or "hub:owner/name", see `resolve.folder`.
    scan_layers: whether the layers are scanned; None: as they were saved.
    dtype: of parameters and activations; None: as they were saved.
    weights: "dtype"; or "bfloat16" or "int8", for the matrices that `quantized`
      tells of. To 8 bits they are rounded one after the other: neither host nor
      devices ever have all of them in another type.
    shardings: `params -> tree of jax.sharding.Sharding`, called with the shapes
      of the parameters as they were saved, or of what is made of them in 8
      bits; None: on the default device.

  Returns:
    A language model and its parameters, all of them finite.

  Raises:
    FileNotFoundError, ValueError: naming the folder, or the file in it, and
      what is missing or wrong.
  """
  folder = resolve.folder(folder)
  if hf_config.is_hf(folder):
    return convert_lib.from_hf(folder,
                               scan_layers=bool(scan_layers),
                               dtype=dtype,
                               weights=weights,
                               shardings=shardings)
  saved = load_config(folder)
  saved = dataclasses.replace(saved, dtype=dtype or saved.dtype,
                              weights=weights)
  params = _restore(pathlib.Path(folder).resolve() / PARAMS, saved, shardings)
  config = saved
  if scan_layers is not None and scan_layers != saved.scan_layers:
    config = dataclasses.replace(saved, scan_layers=scan_layers)
    params = (stack_layers if scan_layers else unstack_layers)(params)
  return transformer.language_model(config), params


def quantize(config: transformer.Config, params: types.Params
             ) -> tuple[types.LanguageModel, types.Params]:
  """A model that is in memory, with weights of 8 bits.

  Args:
    config: the architecture.
    params: its parameters, which stay as they are; on a mesh their matrices
      become such of the same parts.

  Returns:
    A language model and its parameters.

  Raises:
    ValueError: for a reward model.
  """
  config = dataclasses.replace(config, weights=quantization.INT8)
  return transformer.language_model(config), quantization.tree(
      transformer.abstract_params(config), params)


def architecture(folder) -> transformer.Config:
  """The architecture of a model that `load` reads; no parameter is read."""
  folder = resolve.folder(folder)
  if hf_config.is_hf(folder):
    return hf_config.read(folder)
  return load_config(folder)


def convert(folder, out, *, dtype: str | None = None) -> transformer.Config:
  """Writes a Hugging Face folder as `save` would, one tensor at a time.

  The folder appears whole or not at all. Of a model of 1.3 GB in three files
  the whole process needs 0.44 GB at its peak, 0.18 GB more than to start.

  Args:
    folder: as transformers writes it, tokenizer included; or `hub:owner/name`.
    out: where to.
    dtype: of the parameters; None: as they are.

  Returns:
    The architecture.

  Raises:
    FileNotFoundError, ValueError: see `convert.from_hf`.
  """
  folder = resolve.folder(folder)
  config, readers = convert_lib.open_folder(folder, dtype=dtype)
  with atomic.replacing(out) as partial:
    if tokenizers.has(folder):
      tokenizers.copy(folder, partial)
    streaming_save.save(partial / PARAMS, readers)
    (partial / PARAMS / _COMMITTED).unlink(missing_ok=True)
    _write_config(partial, config)
  return config


def export(folder, out, *, dtype: str | None = None) -> transformer.Config:
  """Writes a folder of `save` as transformers reads it.

  Args:
    folder: of `save`, or the name of a shipped model.
    out: where to.
    dtype: of the parameters; None: as they are.

  Returns:
    The architecture.

  Raises:
    FileNotFoundError, ValueError: see `load` and `convert.to_hf`.
  """
  folder = resolve.folder(folder)
  config = load_config(folder)
  config = dataclasses.replace(config, dtype=dtype or config.dtype)
  _, params = load(folder, dtype=dtype)
  with atomic.replacing(out) as partial:
    eos_id = None
    if tokenizers.has(folder):
      eos_id = tokenizers.copy(folder, partial)
      tokenizers.describe(tokenizers.load(partial), partial)
    convert_lib.write(partial, config, params, eos_id)
  return config


def load_config(folder) -> transformer.Config:
  """Reads the architecture of a model of `save`."""
  folder = pathlib.Path(folder)
  path = folder / CONFIG
  if not path.is_file():
    what = f"no {CONFIG} in it" if folder.is_dir() else "no such folder"
    raise FileNotFoundError(f"Checkpoint '{folder}': {what}.")
  fields = json.loads(path.read_text("utf-8"))
  version = fields.pop("format", None)
  if version != FORMAT:
    raise ValueError(f"'{path}': format={version!r}; {FORMAT} is allowed.")
  known = {field.name: field for field in dataclasses.fields(
      transformer.Config)}
  unknown = sorted(set(fields) - set(known))
  if unknown:
    raise ValueError(
        f"'{path}': unknown {unknown}; the fields are {sorted(known)}.")
  missing = sorted(name for name, field in known.items() if name not in fields
                   and field.default is dataclasses.MISSING)
  if missing:
    raise ValueError(f"'{path}': {missing} must be given.")
  # JSON has no tuples, and a `Config` is hashed.
  return transformer.Config(**{
      name: tuple(x) if isinstance(x, list) else x
      for name, x in fields.items()})


def stack_layers(params: types.Params) -> types.Params:
  """Parameters of unrolled layers as those of scanned ones."""
  layers = params["layers"]
  layers = [layers[f"layer_{i}"] for i in range(len(layers))]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
  return {**params, "layers": {"layer": stacked}}


def unstack_layers(params: types.Params) -> types.Params:
  """Parameters of scanned layers as those of unrolled ones."""
  stacked = params["layers"]["layer"]
  num_layers = len(jax.tree.leaves(stacked)[0])
  layers = {f"layer_{i}": jax.tree.map(lambda leaf: leaf[i], stacked)
            for i in range(num_layers)}
  return {**params, "layers": layers}


def _write_config(folder, config):
  atomic.write_json(folder / CONFIG,
                    {"format": FORMAT, **dataclasses.asdict(config)})


def _restore(path, config, shardings):
  """Parameters of an architecture from an orbax folder."""
  if not path.is_dir():
    raise FileNotFoundError(
        f"Checkpoint '{path.parent}': no folder {PARAMS} in it.")
  made = transformer.abstract_params(config)
  whole = transformer.abstract_params(
      dataclasses.replace(config, weights=quantization.DTYPE))
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = lambda tree: jax.tree.map(lambda _: device, tree)
  with ocp.StandardCheckpointer() as checkpointer:
    saved = checkpointer.metadata(path).item_metadata
    if saved is None:
      raise ValueError(f"'{path}' is damaged: orbax finds no metadata in it.")
    _check_shapes(path, saved.tree, whole)
  if config.weights != quantization.INT8:
    return _restore_at_once(path, made, shardings(made))
  return _restore_one_by_one(path, whole, made, shardings(made))


def _restore_at_once(path, made, shardings):
  """All parameters, in the types of `made`."""
  made = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=sharding), made, shardings)
  with ocp.StandardCheckpointer() as checkpointer, _readable(path):
    params = checkpointer.restore(path, made)
  for key, leaf in jax.tree_util.tree_leaves_with_path(params):
    atomic.check_finite(path.parent, transformer.param_name(key), leaf)
  return params


def _restore_one_by_one(path, whole, made, shardings):
  """Each parameter in the type of `whole`, and then as one of `made`."""
  def place(key, kind, sharding):
    def only(this, others):
      return jax.tree_util.tree_map_with_path(
          lambda other, leaf: this(leaf) if other == key else others, whole)

    skipped = ocp.RestoreArgs(restore_type=None)
    with _readable(path):
      read = checkpointer.restore(path, args=ocp.args.PyTreeRestore(
          only(lambda leaf: leaf, ocp.PLACEHOLDER),
          only(lambda leaf: ocp.RestoreArgs(np.ndarray, leaf.dtype), skipped)))
    [x] = [leaf for leaf in jax.tree.leaves(read)
           if leaf is not ocp.PLACEHOLDER]
    atomic.check_finite(path.parent, transformer.param_name(key), x)
    return quantization.place(kind, sharding, x)

  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    return jax.tree_util.tree_map_with_path(
        place, made, shardings, is_leaf=quantization.is_matrix)


@contextlib.contextmanager
def _readable(path):
  """Says which folder it was that orbax could not read."""
  try:
    yield
  except Exception as e:  # Orbax raises nothing more special.
    reason = (str(e).splitlines() or [type(e).__name__])[0]
    raise ValueError(f"'{path}' cannot be read by orbax: {reason}") from e


def _check_shapes(path, saved, expected):
  """Raises an error unless both trees hold the same names and shapes."""
  saved, expected = _shapes(saved), _shapes(expected)
  for name in sorted(saved.keys() | expected.keys()):
    if saved.get(name) != expected.get(name):
      raise ValueError(
          f"'{path}': parameter {name} has shape {saved.get(name)}, but "
          f"{CONFIG} asks for {expected.get(name)}.")


def _shapes(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {transformer.param_name(key): leaf.shape for key, leaf in leaves}
