"""Hugging Face folders as models, and models as Hugging Face folders.

The names of the tensors follow from those of the parameters: a table a family.
Matrices are the same on both sides; columns have one axis there; OPT's table of
positions has two rows more, for positions that its tokenizer once needed.
"""

import dataclasses
import functools

import jax
import numpy as np

from decoding_jax import types
from models import folders
from models import hf_config
from models import hf_files
from models import tokenizers
from models import transformer

_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "norm": "model.norm",
    "layer": "model.layers.{}",
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj"}
_OPT = {
    "embedding": "model.decoder.embed_tokens.weight",
    "positions": "model.decoder.embed_positions.weight",
    "project_in": "model.decoder.project_in",
    "project_out": "model.decoder.project_out",
    "head": "lm_head.weight",
    "norm": "model.decoder.final_layer_norm",
    "layer": "model.decoder.layers.{}",
    "attention_norm": "self_attn_layer_norm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.out_proj",
    "feed_forward_norm": "final_layer_norm",
    "feed_forward/up": "fc1",
    "feed_forward/down": "fc2"}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_COLUMNS = ("scale", "bias")
_BASE = "model."
# Frequencies of the rotary embedding, which old files hold.
_HARMLESS = "rotary_emb.inv_freq"
_OPT_POSITIONS = 2


def from_hf(folder, *, scan_layers: bool = False, dtype: str | None = None,
            shardings=None) -> tuple[types.LanguageModel, types.Params]:
  """Reads a model of the Llama, Mistral, Qwen2, Qwen3 or OPT family.

  One tensor after the other goes to the devices; on the host there is never
  more than one parameter.

  Args:
    folder: with `config.json` and `*.safetensors`, in one piece or with an
      index; files of torch are read where torch is installed.
    scan_layers: whether the layers are to be scanned.
    dtype: of parameters and activations; None: that of the folder.
    shardings: `params -> tree of jax.sharding.Sharding`, called with the shapes
      of the parameters; None: on the default device.

  Returns:
    A language model and its parameters.

  Raises:
    FileNotFoundError: if there is no such folder, or a file is missing.
    ValueError: naming a file, a field or a tensor that is wrong.
  """
  config, readers = open_folder(folder, scan_layers=scan_layers, dtype=dtype)
  abstract = transformer.abstract_params(config)
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = lambda tree: jax.tree.map(lambda _: device, tree)

  def place(path, leaf, sharding):
    x = readers[transformer.param_name(path)]()
    x = jax.make_array_from_callback(leaf.shape, sharding, lambda at: x[at])
    # Else the host's copies would add up while the devices fetch them.
    return jax.block_until_ready(x)

  params = jax.tree_util.tree_map_with_path(place, abstract,
                                            shardings(abstract))
  return transformer.language_model(config), params


def open_folder(folder, *, scan_layers: bool = False, dtype: str | None = None):
  """The parameters of a folder, checked but not read yet.

  Args:
    folder: see `from_hf`.
    scan_layers: see there.
    dtype: see there.

  Returns:
    A `transformer.Config`, and a dict from the names of its parameters, such as
    "layers/layer_0/attention/key/kernel", to `() -> numpy array`.

  Raises:
    FileNotFoundError, ValueError: see `from_hf`.
  """
  config = hf_config.read(folder)
  config = dataclasses.replace(config, scan_layers=scan_layers,
                               dtype=dtype or config.dtype)
  found = _with_base(hf_files.tensors(folder))
  readers, used = {}, set()
  for name, leaf in _named(transformer.abstract_params(config)):
    sources = _sources(config, name)
    shape = _hf_shape(name, leaf.shape[1:] if config.scan_layers
                      and name.startswith("layers/") else leaf.shape)
    for source in sources:
      if source not in found:
        raise ValueError(f"'{folder}': tensor {source} is missing.")
      if found[source].shape != shape:
        raise ValueError(
            f"'{found[source].path}': tensor {source} has shape "
            f"{found[source].shape}, but {hf_config.FILE} asks for {shape}.")
    readers[name] = functools.partial(
        _read, name, leaf, [found[source] for source in sources])
    used.update(sources)
  _check_rest(config, found, used)
  return config, readers


def to_hf(folder, config: transformer.Config, params: types.Params,
          tokenizer=None) -> None:
  """Writes a model so that transformers loads it.

  The folder appears whole or not at all; an existing one is replaced.

  Args:
    folder: where to.
    config: the architecture.
    params: its parameters.
    tokenizer: a `tokenizers.Tokenizer` that goes with it, or None.

  Raises:
    ValueError: naming what no family of Hugging Face has.
  """
  with folders.replacing(folder) as partial:
    eos_id = None
    if tokenizer is not None:
      tokenizers.save(tokenizer, partial)
      tokenizers.describe(tokenizer, partial)
      eos_id = tokenizers.eos_id(tokenizer)
    write(partial, config, params, eos_id)


def write(folder, config: transformer.Config, params: types.Params,
          eos_id: int | None = None) -> None:
  """Writes a model, without a tokenizer, into a folder that exists.

  Args:
    folder: where to.
    config: the architecture.
    params: its parameters.
    eos_id: the token that ends a text, or None.

  Raises:
    ValueError: see `to_hf`.
  """
  fields = {**hf_config.fields(config), "eos_token_id": eos_id}
  leaves = {}
  for name, leaf in _named(params):
    stacked = config.scan_layers and name.startswith("layers/")
    for i, source in enumerate(_sources(config, name)):
      leaves[source] = (name, leaf, i if stacked else None)

  def read(source):
    name, leaf, layer = leaves[source]
    x = np.asarray(leaf if layer is None else leaf[layer])
    kind = name.rpartition("/")[2]
    if kind == "positions":
      return np.pad(x, ((_OPT_POSITIONS, 0), (0, 0)))
    return x[:, 0] if kind in _COLUMNS else x

  shapes = {source: _hf_shape(name, leaf.shape[layer is not None:])
            for source, (name, leaf, layer) in leaves.items()}
  hf_files.write(folder / hf_files.SAFETENSORS, shapes, config.dtype, read)
  folders.write_json(folder / hf_config.FILE, fields)


def _sources(config, name):
  """Tensors of a parameter: one, or one a layer if the layers are scanned."""
  table = _OPT if config.positions == "learned" else _LLAMA
  *path, kind = name.split("/")
  if not path:
    return [table[kind]]
  if path[0] != "layers":
    return [f"{table['/'.join(path)]}.{_KINDS[kind]}"]
  layers = (range(config.num_layers) if config.scan_layers
            else [int(path[1].removeprefix("layer_"))])
  inner = f"{table['/'.join(path[2:])]}.{_KINDS[kind]}"
  return [f"{table['layer'].format(i)}.{inner}" for i in layers]


def _hf_shape(name, shape):
  """The shape there of a parameter without layer axis."""
  kind = name.rpartition("/")[2]
  if kind == "positions":
    return (shape[0] + _OPT_POSITIONS, shape[1])
  return shape[:1] if kind in _COLUMNS else shape


def _read(name, leaf, sources):
  """A parameter as a numpy array of the leaf's shape and type."""
  first = _OPT_POSITIONS if name == "positions" else 0
  if len(sources) == 1:
    x = sources[0].read()[first:].astype(leaf.dtype, copy=False)
    x = x.reshape(leaf.shape)
  else:
    x = np.empty(leaf.shape, leaf.dtype)
    for row, source in zip(x, sources):
      row[...] = source.read().reshape(row.shape)
  if not np.isfinite(x).all():
    raise ValueError(f"'{sources[0].path}': parameter {name} has values that "
                     f"are no numbers in {leaf.dtype}.")
  return x


def _with_base(found):
  """The tensors of a model that was saved without its head, named as with."""
  if any(name.startswith(_BASE) for name in found):
    return found
  return {name if name.startswith("lm_head.") else _BASE + name: x
          for name, x in found.items()}


def _check_rest(config, found, used):
  """Raises an error if a tensor is left that would be ignored."""
  for name in sorted(set(found) - used):
    if name == _LLAMA["head"]:
      # Some files hold the tied head twice.
      table = _OPT if config.positions == "learned" else _LLAMA
      tied = found[table["embedding"]]
      if found[name].shape != tied.shape or not np.array_equal(
          found[name].read(), tied.read()):
        raise ValueError(
            f"'{found[name].path}': tensor {name} differs from "
            f"{table['embedding']}, but tie_word_embeddings is true.")
    elif not name.endswith(_HARMLESS):
      raise ValueError(f"'{found[name].path}': tensor {name} is not one of "
                       "this architecture.")


def _named(tree):
  """(name, leaf) of all parameters."""
  return [(transformer.param_name(path), leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
