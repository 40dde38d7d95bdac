"""Fields of the `config.json` of heads: their types and ranges.

Fields of their layers are checked by `config_fields`.
"""

import pathlib

from models.folders import json_files
from models.huggingface import config as hf_config

_Field = json_files.Field
_FLAG, _WORD = _Field(bool), _Field(str, 0, 256)
_COUNT = _Field(int, 1, 1 << 10)
_LAYERS = _Field(list, 1, 1 << 10, _Field(int, 0, 1 << 10))
_FIELDS = {
    "architectures": _Field(list, 0, 16, _WORD),
    "speculators_model_type": _WORD,
    "eagle_aux_hidden_state_layer_ids": _LAYERS,
    "aux_hidden_state_layer_ids": _LAYERS, "target_layer_ids": _LAYERS,
    "draft_vocab_size": _Field(int, 0, 1 << 24),
    "norm_before_residual": _FLAG, "sample_from_anchor": _FLAG,
    "causal_head": _FLAG, "use_sliding_window": _FLAG,
    "layer_types": _Field(list, 0, 1 << 10, _WORD),
    "block_size": _Field(int, 2, 1 << 10),
    "mask_token_id": _Field(int, 0, 1 << 24),
    "markov_rank": _Field(int, 0, 1 << 20),
    "medusa_num_heads": _COUNT, "medusa_num_layers": _COUNT,
    "hydra_num_heads": _COUNT, "hydra_num_layers": _COUNT,
    "hydra_head_arch": _WORD, "chimera_num_heads": _COUNT}
# Objects, and the fields in them.
_INNER = {**dict.fromkeys(
    ("eagle_config", "dflash_config", "transformer_layer_config"), _FIELDS),
          "clover": {"num_layers": _COUNT, "version": _COUNT,
                     "rope_theta": _Field(float, 1, 1e12)}}


def read(folder) -> dict:
  """Reads the `config.json` of a head.

  Args:
    folder: of the head.

  Returns:
    Its fields, without those that are null.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: naming the file, and a field of another type or out of range.
  """
  path = pathlib.Path(folder) / hf_config.FILE
  fields = json_files.read(path)
  try:
    return _checked(fields, _FIELDS)
  except ValueError as e:
    raise ValueError(f"'{path}': {e}") from e


def _checked(fields, known):
  """Returns fields that have been checked, without those that are null."""
  found = {}
  for name, value in fields.items():
    if value is None:
      continue
    if name in _INNER:
      value = _checked(json_files.check(name, value, _Field(dict)),
                       _INNER[name])
    elif name in known:
      value = json_files.check(name, value, known[name])
    found[name] = value
  return found
