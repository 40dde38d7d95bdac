"""How a head is published: its config, its files, and names of its tensors.

Layers that a head reads are counted in three ways. Where speculators and vLLM
name `*aux_hidden_state_layer_ids` at the top of a config, i is what goes into
layer i, the output of layer i - 1; in the `eagle_config` of SpecForge and
TensorRT-LLM, and in `target_layer_ids`, it is the output of layer i
(sgl-project/sglang, srt/models/llama.py, set_eagle3_layers_to_capture).
"""

import dataclasses
import pathlib
from typing import Any, Callable, NamedTuple

from models.folders import json_files

Field = json_files.Field
SPECULATORS = "speculators_model_type"
# Offsets of a draft vocabulary, among tensors.
OFFSETS = "d2t"
LAYER = "transformer_layer_config"
BLOCK_IDS = "target_layer_ids"
IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
FLAG, WORD, COUNT = Field(bool), Field(str, 0, 256), Field(int, 1, 1 << 10)
_LAYERS = Field(list, 1, 1 << 10, Field(int, 0, 1 << 10))
# Fields of several types of heads; objects that have the same ones are {}.
FIELDS = {
    "architectures": Field(list, 0, 16, WORD), SPECULATORS: WORD,
    **dict.fromkeys((*IDS, BLOCK_IDS), _LAYERS),
    "draft_vocab_size": Field(int, 0, 1 << 24), "use_sliding_window": FLAG,
    "sliding_window": Field(int, 0, 1 << 24),
    "layer_types": Field(list, 0, 1 << 10, WORD), LAYER: {}}
# Parts of a layer, and what files of Llama call them.
LLAMA = {
    "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj", "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/gate": "mlp.gate_proj", "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj"}
_NAMES = {**LLAMA, "embed_norm": "input_layernorm",
          "feature_norm": "hidden_norm",
          "middle_norm": "post_attention_layernorm"}
_ENDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
# Of heads that are saved by their own names.
_HEAD, _CONFIG, _KEPT = "decoding_jax_head", "config", "target_layer_ids"


class Folder(NamedTuple):
  """A folder of a head that is to be read."""
  path: pathlib.Path  # Of the folder
  fields: dict  # Of its `config.json`, whose types have been checked
  tensors: dict  # Dict by name, each with a `shape`
  target: Any  # The `transformer.Config` of the target
  dtype: str  # Of parameters and activations
  # `(fields, prefix="layers.0", family="") -> transformer.Config` of layers as
  # Llama has them, see `models.huggingface.head_layers`
  layers: Callable[..., Any]


class Format(NamedTuple):
  """The published format of the heads of a file."""
  # `(Folder) -> (config, kept)` of the head, and the layers of the target that
  # it reads
  config: Callable[..., Any]
  # `(config, tensors) -> dict` from parameters to tensors; `tensors` is empty
  # when a head is saved
  names: Callable[..., dict[str, str]]
  # `(config, kept, dtype) -> dict`, the `config.json`
  fields: Callable[..., dict]
  field: str = ""  # Of the config, which others have not; "" for none
  architectures: tuple[str, ...] = ()  # Classes that a config names
  # `(tensors) -> whether` they are of such a head
  holds: Callable[..., bool] = lambda tensors: False
  # Dicts from names of files to what the names of their tensors begin with. The
  # first one whose files exist is read, or else the last one; {} is a model's
  # files. The first one is written.
  files: tuple[dict[str, str], ...] = ({},)
  known: dict = {}  # Types of fields, see `FIELDS`
  # `(tensors) -> tensors` of the head by the names of `names`
  select: Callable[..., dict] = lambda tensors: tensors
  # What names of tensors that are not read may begin with
  unused: tuple[str, ...] = ()
  # `(config) -> (transformer.Config, prefix)` of a layer whose tensors, with
  # names that begin so, are more or others than its parameters; these are then
  # named by the prefix and the parameter. None if no layer is.
  layer: Callable[..., Any] = lambda config: None


class _Dotted(dict):
  """Names of tensors, equal to the parameters' names."""

  def __missing__(self, name):
    return name.replace("/", ".")


def of_module(module) -> Format:
  """Returns the format of a file of `models.heads`."""
  own = getattr(module, "FORMAT", None)
  if own:
    return own
  name = module.__name__.rpartition(".")[2]

  def config(folder):
    return (module.Config(**folder.fields[_CONFIG]),
            tuple(folder.fields[_KEPT]))

  def fields(config, kept, dtype):
    del dtype
    sizes = dataclasses.asdict(config)
    for field, value in sizes.items():
      if not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{name}.Config: {field} is no number or word: a "
                         "FORMAT is needed to save such a head.")
    return {f"{_HEAD}_{name}": True, _CONFIG: sizes, _KEPT: list(kept)}

  return Format(config, lambda config, tensors: _Dotted(), fields,
                field=f"{_HEAD}_{name}", known={_CONFIG: Field(dict)})


def architecture(fields: dict) -> str | None:
  names = fields.get("architectures")
  name = names[0] if isinstance(names, list) and names else None
  return name if isinstance(name, str) else None


def kept(folder: Folder, inner: dict) -> tuple[int, ...]:
  """Returns the layers whose outputs a head reads; () where none are named.
  `inner` is its own object in the config. Raises ValueError for layers that the
  target does not have."""
  fields, count = folder.fields, folder.target.num_layers
  before = next((fields[x] for x in IDS if x in fields), ())
  after = next((x[name] for x in (inner, fields)
                for name in (BLOCK_IDS, IDS[0]) if name in x), ())
  layers = tuple(i - 1 for i in before) or tuple(after)
  if any(i not in range(count) for i in layers):
    raise ValueError(f"'{folder.path}' reads the outputs of layers {layers}: "
                     f"the target has the layers 0 to {count - 1}.")
  return layers


def last(target) -> tuple[int, ...]:
  """Returns the last layer of a target, which most heads read."""
  return (target.num_layers - 1,)


def three_layers(target) -> tuple[int, ...]:
  """Returns the layers that EAGLE-3 reads where its files name none. They are
  2, n // 2 and n - 3 of n layers in counts of layers before the feature, as
  files have it; a target of few layers gives what it has."""
  count = target.num_layers
  return tuple(min(max(x - 1, 0), count - 1)
               for x in (2, count // 2, count - 3))


def check_only(folder: Folder, fields: dict, only: dict) -> None:
  """Raises ValueError for fields with other values: they are not computed."""
  for name, value in only.items():
    if (fields.get(name) or value) != value:
      raise ValueError(f"'{folder.path}': {name}={fields[name]!r} is not "
                       f"supported; {value!r} is.")


def draft_vocab(folder: Folder, fields: dict) -> int:
  """Returns how many tokens a head can draft; 0 for all."""
  tensors, size = folder.tensors, folder.target.vocab_size
  shape = tensors[OFFSETS].shape if OFFSETS in tensors else (0,)
  if len(shape) != 1 or OFFSETS in tensors and not shape[0]:
    raise ValueError(f"'{folder.path}': tensor {OFFSETS} has shape {shape}: "
                     "one axis with an entry of each token that is drafted is "
                     "needed.")
  given = fields.get("draft_vocab_size", shape[0])
  if given not in ((shape[0],) if shape[0] else (0, size)):
    raise ValueError(
        f"'{folder.path}': draft_vocab_size={given}: the tensors are of a head "
        f"that drafts {shape[0] or size} tokens.")
  return shape[0]


def has_rows(folder: Folder, name: str) -> bool:
  """Returns whether a table has a row for each of the target's tokens."""
  tensor = folder.tensors.get(name)
  return tensor is not None and tensor.shape[:1] == (folder.target.vocab_size,)


def layer_of(target, number=1):
  """Returns the sizes of layers of a target, of those with attention alone."""
  return dataclasses.replace(
      target.of_layer(0), num_layers=number, scan_layers=False,
      attention_gate=False, attention_layers=(), linear_layer="delta",
      **dict.fromkeys(("linear_key_heads", "linear_value_heads",
                       "linear_key_dim", "linear_value_dim", "linear_conv"), 0),
      full_every=0 if target.linear_key_heads else target.full_every)


def linear(ours: str, theirs: str) -> dict[str, str]:
  """Returns the tensors of a product with a bias."""
  return {f"{ours}/kernel": f"{theirs}.weight",
          f"{ours}/bias": f"{theirs}.bias"}


def layer_names(ours: str, theirs: str) -> dict[str, str]:
  """Returns the tensor of each parameter of a layer of Llama, by prefixes."""
  return {f"{ours}/{a}/{end}": f"{theirs}.{b}.{_ENDS[end]}"
          for a, b in _NAMES.items() for end in _ENDS}


def layer_fields(config, dtype: str) -> dict:
  """Returns the fields of a `config.json` for layers, of tensors of a type."""
  return {"hidden_size": config.dim, "num_attention_heads": config.num_heads,
          "num_key_value_heads": config.num_kv_heads,
          "head_dim": config.head_dim, "intermediate_size": config.hidden_dim,
          "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta,
          "max_position_embeddings": config.max_length, "hidden_act": "silu",
          "num_hidden_layers": config.num_layers,
          "vocab_size": config.vocab_size, "torch_dtype": dtype}


def checked(fields: dict, known: dict) -> dict:
  """Returns fields that are not null, whose types have been checked. `known`
  has a `Field` by name, or a dict of them for an object, {} for the same."""
  values = {}
  for name, value in fields.items():
    if value is None:
      continue
    if isinstance(known.get(name), dict):
      value = checked(json_files.check(name, value, Field(dict)),
                      known[name] or known)
    elif name in known:
      value = json_files.check(name, value, known[name])
    values[name] = value
  return values
