"""The corpus of Python's standard library, which every user has.

Whole modules are held out, chosen by a hash of their names, so that the same
module is held out for every version of Python.
"""

import functools
import hashlib
import pathlib
import sysconfig

import numpy as np

from models.text import tokenizers

TRAIN, HELD_OUT = "train", "held-out"
# In characters; longer tokens, which are runs of spaces, are rare.
_LONGEST_TOKEN = 16
# One module in `_STRIDE` is held out.
_STRIDE = 16
# Generated tables and texts, tests, and packages besides the standard library.
_LEFT_OUT = frozenset((
    "__phello__", "__pycache__", "dist-packages", "encodings", "entities",
    "idle_test", "lib2to3", "locale", "pydoc_data", "site-packages", "test",
    "tests"))


def split_of(name: str, stride: int = _STRIDE) -> str:
  """Returns the split of a module from its dotted name, or of any text."""
  digest = hashlib.sha256(name.encode()).digest()
  held_out = int.from_bytes(digest[:8], "big") % stride == 0
  return HELD_OUT if held_out else TRAIN


@functools.lru_cache(maxsize=None)
def modules(split: str, root: str | None = None) -> list[tuple[str, str]]:
  """Returns (dotted name, source) of the modules of a split, by name."""
  # `root` is a folder; None for the running Python's standard library.
  root = pathlib.Path(root or sysconfig.get_path("stdlib"))
  paths = [(name, path) for name, path in _paths(root)
           if split_of(name) == split]
  if not paths:
    raise FileNotFoundError(
        f"No {split} module (*.py) under '{root}': the corpus is Python "
        "source, by default that of the standard library.")
  return [(name, path.read_text("utf-8", "replace")) for name, path in paths]


def encode(tokenizer, split: str, root: str | None = None) -> np.ndarray:
  """Encodes all modules of one split as `[n]` int32, each ended by EOS."""
  texts = [text for _, text in modules(split, root)]
  end = [tokenizers.eos_id(tokenizer)]
  return np.concatenate([np.asarray(encoding.ids + end, np.int32)
                         for encoding in tokenizer.encode_batch(texts)])


def prompts(tokenizer, count: int, length: int, reference_length: int = 0,
            seed: int = 0, texts: list[str] | None = None, *,
            root: str | None = None) -> list[list[int]]:
  """Draws prompts of texts, by default held-out ones, `length` tokens each."""
  # They start at a line. A longer list extends a shorter one. After each,
  # `reference_length` tokens of its text must follow.
  texts = texts or [text for _, text in modules(HELD_OUT, root)]
  return [passage[:length] for passage in passages(
      tokenizer, count, length + reference_length, seed, texts)]


def passages(tokenizer, count: int, length: int, seed: int,
             texts: list[str]) -> list[list[int]]:
  """Draws different passages of `length` tokens that start at a line."""
  # A larger `count` extends a smaller one.
  lines = [(i, start) for i, text in enumerate(texts)
           for start in _line_starts(text)]
  chosen = []
  for line in np.random.default_rng(seed).permutation(len(lines)):
    if len(chosen) == count:
      break
    i, start = lines[line]
    # Encode enough text for `length` tokens, not all of a long module.
    text = texts[i][start:start + _LONGEST_TOKEN * length]
    tokens = tokenizer.encode(text).ids[:length]
    if len(tokens) == length and tokens not in chosen:
      chosen.append(tokens)
  if len(chosen) < count:
    raise ValueError(
        f"prompts={count} are asked for, but the corpus has only "
        f"{len(chosen)} different passages of {length} tokens.")
  return chosen


def _paths(root):
  """Returns (dotted name, path) of all modules under a folder, by name."""
  paths = []
  for path in root.rglob("*.py"):
    parts = path.relative_to(root).with_suffix("").parts
    if not _LEFT_OUT.intersection(parts) and "-" not in "".join(parts):
      if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
      paths.append((".".join(parts), path))
  return sorted(paths)


def _line_starts(text):
  offset = 0
  for line in text.splitlines(keepends=True):
    if line.strip():
      yield offset
    offset += len(line)
