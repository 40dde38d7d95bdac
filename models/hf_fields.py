"""Fields of a `config.json`, taken out one by one and checked."""

_NO_DEFAULT = object()
# Parameters that each scaling of the rotary embedding has, beside its name.
_ORIGINAL = "original_max_position_embeddings"
SCALINGS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL)}
# And what `transformer.Config` calls them.
ROPE_FIELDS = {
    "factor": "rope_factor", "low_freq_factor": "rope_low_turns",
    "high_freq_factor": "rope_high_turns", _ORIGINAL: "rope_original_length"}


def take(fields, name, kind, default=_NO_DEFAULT, least=1):
  """Takes a field out, checked; null counts as absent.

  Args:
    fields: dict, from which it is removed.
    name: of the field.
    kind: type that it must have; an integer will do for a float.
    default: its value if it is absent; without one it must be there.
    least: what an integer must be at least.

  Returns:
    Its value.

  Raises:
    ValueError: naming the field and its value.
  """
  value = fields.pop(name, None)
  if value is None:
    if default is _NO_DEFAULT:
      raise ValueError(f"{name} must be given.")
    return default
  if kind is float and type(value) is int:
    return float(value)
  if type(value) is not kind:
    raise ValueError(f"{name}={value!r}: a value of type {kind.__name__} is "
                     "needed.")
  if kind is int and value < least:
    raise ValueError(f"{name}={value}: at least {least} is needed.")
  return value


def take_one_of(fields, name, family, allowed):
  """Takes a field out that may only be absent or have certain values."""
  value = fields.pop(name, None)
  if value is not None and value not in allowed:
    raise ValueError(f"{name}={value!r} of {family} is not supported; "
                     f"{' or '.join(map(repr, allowed))} is.")


def channels(common):
  """Channels of a head, where they are not given."""
  if common["dim"] % common["num_heads"]:
    raise ValueError(f"num_attention_heads={common['num_heads']} does not "
                     f"divide hidden_size={common['dim']}.")
  return common["dim"] // common["num_heads"]


def felt(window, max_length):
  """A window, or 0 if no text is longer than it."""
  return window if window and window < max_length else 0


def take_rope(fields, max_length, theta=10000.0, part=1.0):
  """The rotary embedding as transformers 4 or 5 describes it.

  Args:
    fields: dict, from which it is removed.
    max_length: positions.
    theta: base of the wavelengths, where none is given.
    part: share of the channels that are rotated; no other may be given.

  Returns:
    Those fields of `transformer.Config` that begin with "rope".
  """
  theta = take(fields, "rope_theta", float, theta)
  old = take(fields, "rope_scaling", dict, None)
  new = take(fields, "rope_parameters", dict, None)
  if old and new and old != new:
    raise ValueError(f"rope_scaling={old!r} contradicts rope_parameters="
                     f"{new!r}.")
  given = dict(new or old or {})
  kind = given.pop("type", "default")
  kind = given.pop("rope_type", kind)
  if kind not in SCALINGS:
    raise ValueError(f"rope_type={kind!r} is not one of {sorted(SCALINGS)}.")
  theta = take(given, "rope_theta", float, theta)
  values = {name: take(given, name, float, max_length if name == _ORIGINAL
                       else _NO_DEFAULT) for name in SCALINGS[kind]}
  ignored = {"partial_rotary_factor": part}
  if kind == "dynamic":
    ignored[_ORIGINAL] = max_length
  for name, value in given.items():
    if name not in ignored or ignored[name] != value:
      raise ValueError(f"{name}={value!r} of rope_type={kind!r} is not "
                       "supported.")
  return {"rope_theta": theta,
          "rope_scaling": "none" if kind == "default" else kind,
          **{ROPE_FIELDS[name]: value for name, value in values.items()}}


def rope_fields(config):
  """The rotary embedding as transformers 4 describes it.

  Args:
    config: a `transformer.Config`.

  Returns:
    Fields of a `config.json`.
  """
  own = {"rope_theta": config.rope_theta}
  if config.rope_scaling != "none":
    own["rope_scaling"] = {"rope_type": config.rope_scaling, **{
        name: getattr(config, ROPE_FIELDS[name])
        for name in SCALINGS[config.rope_scaling]}}
  return own
