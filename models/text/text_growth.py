"""Bounds how much longer a tokenizer may make a text, before it runs.

A few replacements of "a" by a thousand would fill any memory and abort the
process, even when a file is read: its added tokens are normalised.
"""

import base64
import json
import math

# Published ones stay under 150: spaces, a first one, and compatible characters.
_MOST = 1 << 10


def check(path) -> None:
  """Raises ValueError for a `tokenizer.json` that makes texts much longer."""
  try:
    fields = json.loads(path.read_bytes())
    growth = {name: _growth(fields.get(name))
              for name in ("normalizer", "decoder")}
  except Exception:  # pylint: disable=broad-except
    return  # Whatever is wrong with the file, the library says.
  for name, factor in growth.items():
    if factor > _MOST:
      raise ValueError(f"'{path}': its {name} may make a text {factor:g} times "
                       f"as long; at most {_MOST} is allowed.")


def _growth(step) -> float:
  if not step:
    return 1.0
  inner = [*step.get("normalizers", ()), *step.get("decoders", ())]
  if step["type"] == "Replace":
    # A regular expression may match between all characters.
    pattern = step["pattern"].get("String", "")
    added = len(step["content"])
    own = added / len(pattern) if pattern else 1 + added
  elif step["type"] == "Prepend":
    own = 1 + len(step["prepend"])
  elif step["type"] == "Precompiled":
    # A trie, behind its size, and texts that it points into.
    table = base64.b64decode(step["precompiled_charsmap"] or "")
    texts = table[4 + int.from_bytes(table[:4], "little"):].split(b"\0")
    own = max(map(len, texts))
  else:
    own = 1.0
  return max(own, 1.0) * math.prod(map(_growth, inner))
