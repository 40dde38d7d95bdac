"""How large the pattern of a JSON schema becomes, before it is built.

A pattern of `outlines_core` holds a schema of items twice, and one of optional
properties once for each of them: nested schemas grow exponentially.
"""

import json

# Levels of a schema, and of the values in it.
MAX_DEPTH = 100
# Parts of a schema, references written out, and comparisons of `oneOf`.
MAX_PARTS = 20_000
# Characters of the pattern.
MAX_PATTERN = 500_000
# What is around each part, and a part that allows any JSON.
_AROUND, _ANY = 60, 7000


def check_depth(schema):
  """Checks how deep a schema is nested, without recursion.

  Args:
    schema: of dicts and lists.

  Raises:
    ValueError: naming the limit.
  """
  level, depth = [schema], 0
  while level:
    if depth > MAX_DEPTH:
      raise ValueError(f"nested more than {MAX_DEPTH} levels deep, the limit.")
    # Parts of one level; the same object may be in several places.
    inside = [y for x in level if isinstance(x, (dict, list, tuple))
              for y in (x.values() if isinstance(x, dict) else x)]
    level = list({id(x): x for x in inside}.values())
    depth += 1


def check(name: str, plain, whitespace: str | None):
  """Checks how long the pattern of a schema will be.

  Args:
    name: what the error begins with.
    plain: of `schema_regex.plain`.
    whitespace: the pattern between parts, or None.

  Raises:
    ValueError: naming the length and the limit.
  """
  check_depth(plain)  # References may have made it deeper.
  size = _size(plain, _AROUND + 4 * len(whitespace or ""))
  if size > MAX_PATTERN:
    raise ValueError(f"{name}: a regular expression of about {size} characters:"
                     f" at most {MAX_PATTERN} are supported.")


def _size(node, around):
  """Returns about how many characters the pattern of a part has."""
  if "enum" in node:
    return around + sum(2 * len(json.dumps(x)) for x in node["enum"])
  if "anyOf" in node:
    return around + sum(_size(x, around) for x in node["anyOf"])
  inside = around
  if "items" in node:
    inside += 2 * _size(node["items"], around)
  if isinstance(node.get("additionalProperties"), dict):
    inside += 2 * _size(node["additionalProperties"], around)
  inside += sum(_size(x, around) for x in node.get("prefixItems", ()))
  if "properties" in node:
    properties = node["properties"]
    size = sum(around + len(key) + _size(x, around)
               for key, x in properties.items())
    required = bool(set(node.get("required", ())) & set(properties))
    # Without a required one, each optional one may be the first.
    return inside + size * (1 if required else max(len(properties), 1))
  if node.get("type") in ("array", "object") and inside == around:
    return _ANY
  return inside + len(node.get("pattern", ""))
