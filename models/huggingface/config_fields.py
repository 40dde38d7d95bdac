"""Fields of a `config.json`, taken out one by one and checked."""

_NO_DEFAULT = object()


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


def effective_window(window, max_length):
  """A window, or 0 if no text is longer than it."""
  return window if window and window < max_length else 0
