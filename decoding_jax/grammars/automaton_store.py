"""Automata on disk, by a digest of what they were made of."""

import functools
import hashlib
import json
import os
import pathlib
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence

import numpy as np

from decoding_jax.grammars import vocabulary_digest
from decoding_jax.grammars.sparse_automaton import SparseAutomaton
from decoding_jax.grammars.token_automaton import Automaton

_TYPES = {"Automaton": Automaton, "SparseAutomaton": SparseAutomaton}
_TYPE = "kind"


def stored(folder, make: Callable, what, pieces: Sequence[bytes], eos_id, *,
           least_seconds: float = 0.0, **options):
  """Returns `make(what, pieces, eos_id, **options)`, and whether it was read
  from disk. A file's digest covers all arguments, the vocabulary and the source
  of this package, so a stale file is never read. `what` and `options` are JSON
  values. Automata made in less than `least_seconds` are not written; a folder
  that cannot be written gives a warning."""
  digest = _digest(make, what, pieces, eos_id, options)
  path = pathlib.Path(folder) / f"{digest}.npz"
  automaton = _read(path)
  if automaton is not None:
    return automaton, True
  begin = time.monotonic()
  automaton = make(what, pieces, eos_id, **options)
  if time.monotonic() - begin >= least_seconds:
    try:
      _write(path, automaton)
    except OSError as e:  # The text does not depend on it.
      warnings.warn(f"the automaton cannot be kept, and is compiled again the "
                    f"next time: {e}", stacklevel=2)
  return automaton, False


def _digest(make, what, pieces, eos_id, options):
  ends = np.atleast_1d(np.asarray([] if eos_id is None else eos_id))
  text = json.dumps([_source_digest(), make.__module__, make.__qualname__, what,
                     vocabulary_digest.of_pieces(pieces), ends.tolist(),
                     sorted(options.items())])
  return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _source_digest():
  """Returns a digest of the files that automata are made by."""
  digest = hashlib.sha256()
  for path in sorted(pathlib.Path(__file__).parent.rglob("*.py")):
    digest.update(path.read_bytes())
  return digest.hexdigest()


def _read(path):
  """Returns the automaton of a file; None without one, or of one cut short."""
  try:
    with np.load(path, allow_pickle=False) as arrays:
      fields = {name: arrays[name] for name in arrays.files}
    return _TYPES[str(fields.pop(_TYPE))](**fields)
  except (OSError, EOFError, KeyError, TypeError, ValueError,
          zipfile.BadZipFile):
    return None


def _write(path, automaton):
  path.parent.mkdir(parents=True, exist_ok=True)
  # Under another name first: another process may read it at any time.
  handle, name = tempfile.mkstemp(dir=path.parent, suffix=".partial")
  try:
    with os.fdopen(handle, "wb") as file:
      np.savez_compressed(file, **{_TYPE: type(automaton).__name__}, **{
          field: np.asarray(getattr(automaton, field))
          for field in automaton.__dataclass_fields__})
    os.replace(name, path)
  except BaseException:
    pathlib.Path(name).unlink(missing_ok=True)
    raise
