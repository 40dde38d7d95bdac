"""Reads and writes the fields of `config.json` for the rotary embedding.

Where `attention_factor` is absent, it follows from other fields as in the code
of transformers. A `transformer.Config` always has it, as `rope_gain`.
"""

import math

from models.huggingface import config_fields

_take = config_fields.take
ORIGINAL = "original_max_position_embeddings"
# Parameters that each scaling has, besides its name.
_SCALINGS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor", "beta_slow", "beta_fast", ORIGINAL, "attention_factor",
             "truncate"),
    "longrope": ("short_factor", "long_factor", ORIGINAL, "attention_factor")}
# And what `transformer.Config` calls them.
_NAMES = {
    "factor": "rope_factor", "low_freq_factor": "rope_low_turns",
    "high_freq_factor": "rope_high_turns", "beta_slow": "rope_low_turns",
    "beta_fast": "rope_high_turns", ORIGINAL: "rope_original_length",
    "attention_factor": "rope_gain", "truncate": "rope_truncate",
    "short_factor": "rope_short_factors", "long_factor": "rope_long_factors"}
# What changes the computation in some family or scaling.
_ELSEWHERE = frozenset(_NAMES) | set("""
    alpha long_mscale mrope_interleaved mrope_section mscale mscale_all_dim
    partial_rotary_factor short_mscale
    """.split())
UNKNOWN = "rope_scaling/"
_BETAS = {"beta_slow": 1.0, "beta_fast": 32.0}


def parse(fields, max_length, theta=10000.0, part=1.0):
  """Reads the rotary embedding as transformers 4 or 5 describes it, as rope_*
  fields of `transformer.Config`, and `max_length` where the scaling changes it.
  "yarn" may extend texts, as in Qwen's files; "longrope" ends where its
  frequencies would change. Unknown parameters go into `fields`, as `UNKNOWN`
  and their names. `theta` is the default base, `part` the only rotated share
  that may be given."""
  theta = _take(fields, "rope_theta", theta)
  beside = _take(fields, ORIGINAL, None)
  old = _take(fields, "rope_scaling", None)
  new = _take(fields, "rope_parameters", None)
  if old and new and old != new:
    raise ValueError(f"rope_scaling={old!r} contradicts rope_parameters="
                     f"{new!r}.")
  given = dict(new or old or {})
  type_ = _take(given, "type", "default")
  type_ = _take(given, "rope_type", type_)
  if type_ not in _SCALINGS:
    raise ValueError(f"rope_type={type_!r} is not one of {sorted(_SCALINGS)}.")
  theta = _take(given, "rope_theta", theta)
  original = None
  if ORIGINAL in _SCALINGS[type_]:
    original = _original(given, beside, max_length)
  scaling = _PARSERS.get(type_, _numbers)(given, type_, max_length, original)
  ignored = {"partial_rotary_factor": part}
  if type_ == "dynamic":
    ignored[ORIGINAL] = max_length
  for name, value in given.items():
    if name in ignored and ignored[name] == value:
      continue
    if name in _ELSEWHERE:
      raise ValueError(f"{name}={value!r} of rope_type={type_!r} is not "
                       "supported.")
    # Such as `attn_factor` and `finetuned`: unknown to transformers as well.
    fields[f"{UNKNOWN}{name}"] = value
  return {"rope_theta": theta,
          "rope_scaling": "none" if type_ == "default" else type_, **scaling}


def longest(scaling, max_length):
  """Returns the length of the longest text, which may exceed `max_length`."""
  return max(max_length, scaling.get("max_length", 0))


def own_fields(config):
  """Writes the rotary embedding as transformers 4 describes it."""
  own = {"rope_theta": config.rope_theta}
  type_ = config.rope_scaling
  if type_ == "longrope":
    return own | _longrope_fields(config)
  if type_ != "none":
    scaling = {name: getattr(config, _NAMES[name]) for name in _SCALINGS[type_]}
    if ORIGINAL in scaling:
      scaling[ORIGINAL] = int(scaling[ORIGINAL])
    own["rope_scaling"] = {"rope_type": type_, **scaling}
  return own


def _original(given, beside, max_length):
  """Reads the length before scaling, which may also be a field of the model."""
  inside = _take(given, ORIGINAL, beside)
  if beside is not None and inside != beside:
    raise ValueError(f"{ORIGINAL}={inside} of the rotary embedding contradicts "
                     f"{ORIGINAL}={beside} of the model.")
  original = float(max_length if inside is None else inside)
  if original == 1:
    raise ValueError(f"{ORIGINAL}={original}: more than 1 is needed.")
  return original


def _numbers(given, type_, max_length, original):
  """Reads the parameters of a scaling whose fields are all required numbers."""
  del max_length
  return {_NAMES[name]: original if name == ORIGINAL
          else _take(given, name) for name in _SCALINGS[type_]}


def _yarn(given, type_, max_length, original):
  del type_
  ratio = max_length / original
  factor = _take(given, "factor", *([ratio] if ratio > 1 else []))
  scales = [_take(given, name, 0.0)
            for name in ("mscale", "mscale_all_dim")]
  over, under = scales if all(scales) else (1.0, 0.0)
  growth = 0.1 * math.log(max(factor, 1.0))
  return {
      "max_length": max(max_length, int(factor * original)),
      "rope_factor": factor, "rope_original_length": original,
      **{_NAMES[name]: _take(given, name, default)
         for name, default in _BETAS.items()},
      "rope_gain": _take(given, "attention_factor",
                         (over * growth + 1) / (under * growth + 1)),
      "rope_truncate": _take(given, "truncate", True)}


def _longrope(given, type_, max_length, original):
  del type_
  short, long = (tuple(_take(given, name))
                 for name in ("short_factor", "long_factor"))
  ratio = max_length / original
  gain = _longrope_gain(_take(given, "factor", ratio), original)
  # With the same factors for all texts nothing changes at that length.
  return {
      "max_length": (max_length if short == long
                     else min(max_length, int(original))),
      "rope_factor": ratio, "rope_original_length": original,
      "rope_short_factors": short, "rope_long_factors": long,
      "rope_gain": _take(given, "attention_factor", gain)}


def _longrope_gain(factor, original):
  """Returns the gain by the authors' code, used where no field gives it."""
  return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))


def _longrope_fields(config):
  """Writes the fields as Phi-3 has them: transformers 4 accepts no others."""
  original, longest = int(config.rope_original_length), config.max_length
  short, long = config.rope_short_factors, config.rope_long_factors
  if longest > original:
    # Here they are for all texts, and so they must be there.
    short = long
  elif longest == original and short != long:
    longest = max(original, round(config.rope_factor * original))
  scaling = {"type": "longrope", "short_factor": list(short),
             "long_factor": list(long)}
  if config.rope_gain != _longrope_gain(longest / original, original):
    scaling["attention_factor"] = config.rope_gain
  return {"rope_scaling": scaling, ORIGINAL: original,
          "max_position_embeddings": longest}


_PARSERS = {"yarn": _yarn, "longrope": _longrope}
