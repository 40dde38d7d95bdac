"""Digests of files, which tell damage from other errors."""

import hashlib
import json


def of(path) -> str:
  """Returns the digest of a file's content."""
  with open(path, "rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


def read(path) -> dict:
  """Reads what is known by name; {} if the file is missing or damaged."""
  try:
    known = json.loads(path.read_text())
  except (OSError, ValueError, RecursionError):
    return {}
  return known if isinstance(known, dict) else {}
