"""Formats of heads that read drafted tokens: Hydra, Clover-2, Chimera.

    Hydra      `hydra_mlp.*`, `hydra_lm_head.*` in a file hydra_lm_head
    Clover-2   `clover_*` and `layers.*`, and `clover` in the config
    Chimera    files trimlp, fast_layer1 and chimera_head

Names were read in zankner/Hydra@3f39fbd2 (hydra/model), XiaoBin1992/clover@
9d37214a (clover/model/clover2.py) and kafkayu/Chimera@1650c932 (Chimera_model).
The layers of Hydra++ and Chimera have the sizes of the target's: files hold
none. What is written here is one file of safetensors.
"""

import dataclasses
import pathlib
from typing import Any, Callable, NamedTuple

from models.heads import chimera
from models.heads import clover
from models.heads import hydra
from models.huggingface import head_layers
from models.huggingface import tensor_files

# Of Hydra: kinds of heads, and whether they have a prefix layer.
_ARCHITECTURES = {"mlp": False, "prefix-mlp": True}
_PREFIX = "prefix_embeding_layer"  # Spelt as in files.
_CHIMERA_PARTS = ("trimlp", "fast_layer1", "chimera_head")
# Clover-2 rotates by this base, whatever its config says.
_THETA = 1e4


class Format(NamedTuple):
  """How heads of a kind are published.

  Attributes:
    told_by: field of the config that others have not.
    file: of their tensors, as written here.
    config: `(path, fields, tensors, target, dtype) -> config` of the head.
    names: `(config) -> dict` from parameters to tensors.
    fields: `(config, dtype) -> dict`, the `config.json`.
  """
  told_by: str
  file: str
  config: Callable[..., Any]
  names: Callable[[Any], dict[str, str]]
  fields: Callable[[Any, str], dict]


def kind(fields):
  """Returns the module of the heads that a config describes, or None."""
  return next((module for module, found in FORMATS.items()
               if found.told_by in fields), None)


def tensors(folder, module) -> dict[str, tensor_files.Tensor]:
  """Opens all tensors of a head.

  Args:
    folder: of the head.
    module: of `kind`.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if a file is damaged.
  """
  path = pathlib.Path(folder)
  if module is clover:
    return tensor_files.tensors(path)
  written = path / FORMATS[module].file
  if written.is_file():
    return tensor_files.of_file(written)
  if module is hydra:
    return tensor_files.of_file(written.with_suffix(".pt"))
  return {f"{part}.{name}": x for part in _CHIMERA_PARTS for name, x in
          tensor_files.of_file(path / f"{part}.pt").items()}


def _hydra(path, fields, found, target, dtype):
  del found, dtype
  arch = fields.get("hydra_head_arch", "mlp")
  if arch not in _ARCHITECTURES:
    raise ValueError(f"'{path}': hydra_head_arch={arch!r} is not supported; "
                     f"{' and '.join(map(repr, _ARCHITECTURES))} are.")
  for name, only in (("grounded_heads", True), ("hidden_state_offset", 0)):
    if fields.get(name, only) != only:
      raise ValueError(f"'{path}': {name}={fields[name]!r} is not supported; "
                       f"{only!r} is.")
  prefix = _of_target(target) if _ARCHITECTURES[arch] else None
  return hydra.Config(fields["hydra_num_heads"],
                      fields.get("hydra_num_layers", 1), prefix)


def _hydra_names(config):
  names = {}
  for i in range(config.heads):
    # There are layers of dropout in heads with a prefix layer.
    last = f"hydra_lm_head.{i}{'.1' if config.prefix else ''}"
    names |= {f"heads/head_{i}_out": f"{last}.weight",
              f"heads/head_{i}_out_bias": f"{last}.bias"}
    for j in range(config.blocks):
      block = f"hydra_mlp.{i}.{2 * j + 1 if config.prefix else j}"
      names |= _linear(f"heads/head_{i}_block_{j}", f"{block}.linear")
      if not j:
        names |= _linear(f"heads/head_{i}_residual", f"{block}.res_connection")
  return names | {"prefix/norm/scale": f"{_PREFIX}.norm.weight"} | (
      head_layers.names("prefix/layers/layer_0", f"{_PREFIX}.layers.0"))


def _hydra_fields(config, dtype):
  del dtype
  return {"hydra_num_heads": config.heads, "hydra_num_layers": config.blocks,
          "hydra_head_arch": "prefix-mlp" if config.prefix else "mlp",
          "grounded_heads": True, "hidden_state_offset": 0}


def _clover(path, fields, found, target, dtype):
  more = fields["clover"]
  if "num_layers" not in more:
    raise ValueError(f"'{path}': no field 'num_layers' of clover.")
  layers = head_layers.config(path, {
      **fields, "num_hidden_layers": more["num_layers"],
      "rope_theta": more.get("rope_theta", _THETA)}, dtype, target, found)
  table = found.get("clover_embed_tokens.weight")
  return clover.Config(layers, more.get("version", 2), own_embedding=(
      table is not None and table.shape[:1] == (target.vocab_size,)))


def _clover_names(config):
  names = {"embedding": "clover_embed_tokens.weight",
           "augment/norm/scale": "clover_norm.weight",
           "recurrence/head_norm/scale": "clover_head_norm.weight",
           **_linear("recurrence/first_out", "clover_head_mlp"),
           **_linear("recurrence/following_out", "clover_head_mlp2")}
  for ours, theirs in (("first", "rnn"), ("following", "rnn2")):
    ours, theirs = f"recurrence/{ours}", f"clover_head_mlp_{theirs}"
    names[f"{ours}/norm/scale"] = f"{theirs}.input_layernorm.weight"
    for part in ("query", "key", "value"):
      names |= _linear(f"{ours}/{part}", f"{theirs}.{part[0]}")
  for i in range(config.layers.num_layers):
    names |= head_layers.names(f"augment/layers/layer_{i}", f"layers.{i}")
  return names


def _clover_fields(config, dtype):
  layers = config.layers
  return head_layers.fields(layers, dtype) | {
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "clover": {
          "num_layers": layers.num_layers, "version": config.version,
          "rope_theta": layers.rope_theta}}


def _chimera(path, fields, found, target, dtype):
  del path, found, dtype
  return chimera.Config(_of_target(target), fields["chimera_num_heads"])


def _chimera_names(config):
  trigram, layer, outputs = _CHIMERA_PARTS
  return {**_linear("gram", f"{trigram}.0.linear"),
          **_linear("gram_out", f"{trigram}.1"),
          **{f"head_{i}": f"{outputs}.{i}.0.weight"
             for i in range(config.heads)},
          **head_layers.names("layer", f"{layer}.0")}


def _chimera_fields(config, dtype):
  del dtype
  return {"chimera_num_heads": config.heads}


def _linear(ours, theirs):
  return {f"{ours}/kernel": f"{theirs}.weight",
          f"{ours}/bias": f"{theirs}.bias"}


def _of_target(target):
  """Returns the sizes of one layer of the target."""
  return dataclasses.replace(target, num_layers=1, scan_layers=False)


FORMATS = {
    hydra: Format("hydra_num_heads", "hydra_lm_head.safetensors", _hydra,
                  _hydra_names, _hydra_fields),
    clover: Format("clover", tensor_files.SAFETENSORS, _clover, _clover_names,
                   _clover_fields),
    chimera: Format("chimera_num_heads", "chimera.safetensors", _chimera,
                    _chimera_names, _chimera_fields)}
