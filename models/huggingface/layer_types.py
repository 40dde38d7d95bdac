"""Layers of two types in `config.json`: with a window, and every n-th without.

Gemma 2 and 3 and OLMo 3 have them; each type may have its own rotary embedding.
"""

from models.huggingface import config_fields
from models.huggingface import rope as hf_rope

_take = config_fields.take
FULL, LINEAR, _SLIDING = (f"{name}_attention"
                          for name in ("full", "linear", "sliding"))


def windows(fields, family, num_layers, every):
  """Reads the window, and which layers see all positions nevertheless. Where no
  field says, that is every `every`-th layer. Returns fields of
  `transformer.Config`; none if all layers see all positions."""
  window = _take(fields, "sliding_window", None)
  if window is not None:
    config_fields.take_one_of(fields, "sliding_window_size", family, (window,))
  types = _take(fields, "layer_types", None) or _types(num_layers, every)
  every = types.index(FULL) + 1 if FULL in types else num_layers + 1
  if types != _types(num_layers, every):
    raise ValueError(
        f"layer_types={types!r} of {family}: {num_layers} are needed, of which "
        f"every n-th is {FULL} and the others are {_SLIDING}.")
  if every == 1:
    return {}
  if window is None:
    raise ValueError(f"layer_types={types!r}: sliding_window must be given.")
  return {"window": window, "full_every": every if FULL in types else 0}


def two_ropes(fields, max_length, theta, local_theta):
  """Reads rotary embeddings of layers with and without a window. The bases
  `theta` and `local_theta` are those where `rope_parameters` have none; layers
  with a window are never scaled. See `rope.parse`."""
  both = dict(_take(fields, "rope_parameters", {}))
  unknown = sorted(set(both) - {FULL, _SLIDING})
  if unknown:
    raise ValueError(f"rope_parameters={both!r}: {FULL} and {_SLIDING} are "
                     f"needed, not {unknown[0]}.")
  full, sliding = (_take(both, name, {}) for name in (FULL, _SLIDING))
  # Where a file gives both, transformers 5 adds the old field to the new one.
  given = {**full, **_take(fields, "rope_scaling", {})}
  rest = ({"rope_theta": theta, "rope_parameters": given},
          {"rope_theta": local_theta, "rope_parameters": sliding})
  full, local = (hf_rope.parse(part, max_length) for part in rest)
  fields.update(rest[0] | rest[1])
  if local["rope_scaling"] != "none":
    raise ValueError(f"rope_type={local['rope_scaling']!r} of {_SLIDING} is "
                     "not supported; 'default' is.")
  return {**full, "rope_local_theta": local["rope_theta"]}


def own_windows(config):
  """Writes what `windows` reads."""
  every = config.full_every or config.num_layers + 1
  # Transformers needs a window, though no layer has it.
  return {"sliding_window": config.window or config.max_length,
          "layer_types": _types(config.num_layers,
                                every if config.window else 1)}


def own_ropes(config):
  """Writes what `two_ropes` reads of both types, for transformers 5 only."""
  own = hf_rope.own_fields(config)
  full = {"rope_type": "default", **own.pop("rope_scaling", {}), **own}
  local = {"rope_type": "default",
           "rope_theta": config.rope_local_theta or config.rope_theta}
  return {"rope_parameters": {FULL: full, _SLIDING: local}}


def linear(num_layers, every):
  """Returns the types of layers of which every n-th has attention; 0: none."""
  return [LINEAR if x == _SLIDING else x
          for x in _types(num_layers, every or num_layers + 1)]


def _types(num_layers, every):
  return [_SLIDING if (i + 1) % every else FULL for i in range(num_layers)]
