"""Start tables: what a drafter without a model knows of texts, in a file."""

import hashlib
import json
from typing import NamedTuple
import zipfile
import zlib

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.types import NONE
from experiments.app import launch
from experiments.devices import memory_estimate
from models.text import tokenizers

# Methods that begin with a table, and the axes and types of its arrays.
_TOKENS = (2, np.int32)
_ARRAYS = {"token_recycling": (_TOKENS,), "aded": (_TOKENS, (2, np.float32)),
           "suffix": ((1, np.int32),)}
KINDS = tuple(_ARRAYS)
# What numpy and zipfile raise for a damaged file, and for a header that claims
# more than there is memory.
_DAMAGES = (EOFError, KeyError, MemoryError, NotImplementedError, RuntimeError,
            ValueError, zipfile.BadZipFile, zlib.error)
_SUFFIX = ".npz"


class StartTable(NamedTuple):
  """The start table of one family of drafters."""
  kind: str  # one of `KINDS`
  params: dj.types.Params  # `draft_params` of a method of the family
  path: str = ""  # file that it was read from; "" for none


def is_file(draft) -> bool:
  """Returns whether a value of `--draft` names a start table."""
  return str(draft).endswith(_SUFFIX)


def make(family: str, texts, vocab_size: int, branching: int = 8,
         buckets: int = 16384) -> StartTable:
  """Makes a start table of one of `KINDS` of texts, each `[T]` int32."""
  # `branching` (successors that are kept) and `buckets` (of aded) as in the
  # method.
  if family == "suffix":
    parts = [np.append(text, NONE) for text in texts]
    return StartTable(family, np.concatenate(parts)[:-1].astype(np.int32))
  if family == "token_recycling":
    pairs = [(text[:-1], text[1:]) for text in texts]
    return StartTable(family, _most_frequent(pairs, vocab_size, branching)[0])
  # Few runs need it.
  from decoding_jax.speculation.drafters import trigram_table
  pairs = [(trigram_table.bucket(text[:-2], text[1:-1], buckets), text[2:])
           for text in texts]
  tokens, counts = _most_frequent(pairs, buckets, branching)
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  return StartTable(family, (tokens, shares.astype(np.float32)))


def save(path, table: StartTable, tokenizer):
  """Writes a start table, for models of this tokenizer."""
  arrays = {str(i): x for i, x in enumerate(jax.tree.leaves(table.params))}
  np.savez_compressed(path, kind=table.kind, vocabulary=_digest(tokenizer),
                      **arrays)


def load(path: str, tokenizer) -> StartTable:
  """Reads a start table; raises `OSError`, or `ValueError` if it is none."""
  try:
    # Not by its name: numpy takes any file that is no archive for a pickle.
    with zipfile.ZipFile(path), np.load(path) as stored:
      values = dict(stored)
    family, vocabulary = str(values.pop("kind")), str(values.pop("vocabulary"))
    arrays = tuple(values[str(i)] for i in range(len(values)))
  except _DAMAGES as e:
    raise ValueError(f"draft='{path}' is not a start table, as experiments."
                     "convert --table writes it.") from e
  if family not in KINDS:
    raise ValueError(f"draft='{path}' is a start table of {family}: one of "
                     f"{', '.join(KINDS)} is needed.")
  if vocabulary != _digest(tokenizer):
    raise ValueError(f"draft='{path}' was made with another tokenizer than the "
                     "target's: make it again by experiments.convert.")
  try:
    _check_arrays(family, arrays, tokenizers.size(tokenizer))
  except ValueError as e:
    raise ValueError(f"draft='{path}' is a start table of {family}: {e}") from e
  return StartTable(family, arrays if len(arrays) > 1 else arrays[0], path)


def _check_arrays(family, arrays, vocab_size):
  needed = [f"{axes}-D {np.dtype(dtype)}" for axes, dtype in _ARRAYS[family]]
  given = [f"{x.ndim}-D {x.dtype}" for x in arrays]
  if given != needed:
    raise ValueError(f"its arrays are {', '.join(given) or '(none)'}; it needs "
                     f"{', '.join(needed)}.")
  tokens, *shares = arrays
  if not tokens.size or tokens.min() < NONE or tokens.max() >= vocab_size:
    raise ValueError(f"its {tokens.size} tokens are not all of {NONE} (none) "
                     f"to {vocab_size - 1}.")
  if shares and (shares[0].shape != tokens.shape
                 or not ((shares[0] >= 0) & (shares[0] <= 1)).all()):
    raise ValueError("its shares must be 0 to 1, one for each token.")


def params(table: StartTable | None, method: dj.Method):
  """Returns `draft_params` of a method without a draft model, or None."""
  return table.params if table and table.kind == _family(method) else None


def check_used(table: StartTable | None, methods):
  """Raises `UserError` if none of the methods begins with this table."""
  if table and table.kind not in map(_family, methods):
    raise launch.UserError(
        f"draft='{table.path}' is a start table of {table.kind}, and not of "
        f"{', '.join(dict.fromkeys(map(_family, methods)))}.")


def check(table: StartTable | None, method: dj.Method, lm: dj.LanguageModel):
  """Raises `UserError` if a method's table has another shape."""
  start = params(table, method)
  if start is None:
    return
  try:
    memory_estimate.carry(method.sampled, 1, 1, 1, lm, draft_params=start)
  except ValueError as e:
    raise launch.UserError(f"draft='{table.path}', method {method.name}: "
                           f"{e}") from e


def described(table: StartTable) -> str:
  """Returns a phrase about family, shape and how much of a table is known."""
  tokens = jax.tree.leaves(table.params)[0]
  share = np.mean(tokens.reshape(len(tokens), -1)[:, 0] != NONE)
  return f"{table.kind}, {list(tokens.shape)}, {share:.0%} of it known"


def _family(method):
  return method.name.split("(")[0]


def _digest(tokenizer):
  entries = json.dumps(sorted(tokenizer.get_vocab().items()))
  return hashlib.sha256(entries.encode()).hexdigest()[:16]


def _most_frequent(seen, size, count):
  """Returns the `count` most frequent tokens after each key, and counts."""
  # `seen` are (keys `[T]` below `size`, tokens `[T]`); results are `[size,
  # count]` int32, `NONE` where there are fewer, and float32.
  keys, tokens = (np.concatenate(x).astype(np.int64) for x in zip(*seen))
  base = tokens.max(initial=0) + 1
  pairs, counts = np.unique(keys * base + tokens, return_counts=True)
  keys, tokens = pairs // base, pairs % base
  order = np.lexsort((-counts, keys))
  keys, tokens, counts = keys[order], tokens[order], counts[order]
  ranks = np.arange(len(keys)) - np.searchsorted(keys, keys)
  kept = ranks < count
  table = np.full((size, count), NONE, np.int32)
  scores = np.zeros((size, count), np.float32)
  table[keys[kept], ranks[kept]] = tokens[kept]
  scores[keys[kept], ranks[kept]] = counts[kept]
  return table, scores
