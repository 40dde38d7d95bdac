"""Texts that a teacher writes, for its student to learn from."""

import pathlib
import sys

import jax
import numpy as np
import tqdm

import decoding_jax as dj
from decoding_jax.validation import keys as row_keys
from experiments.app import multihost
from experiments.devices import mesh as mesh_lib
from experiments.training import array_files


def load_or_write(path, config, data, teacher):
  """Returns samples at temperature 1, `[sample_rows, sample_length]`."""
  # `path` is read if it is there and whole, else written. After its end a text
  # is padded with `types.PAD` if the data has an `eos_id`; else the teacher
  # goes on with another text, as in the corpus.
  path = pathlib.Path(path)
  shape = config.sample_rows, config.sample_length
  array_files.keep(path, lambda: _write(config, data, teacher),
                   lambda: _is_whole(path, shape))
  return _load(path, shape)


def _is_whole(path, shape):
  """Returns whether there is such a file; says so if it is damaged."""
  if not path.exists():
    return False
  try:
    _load(path, shape)
    return True
  except (EOFError, OSError, ValueError) as e:
    print(f"'{path}' is damaged ({e}): samples are written again.",
          file=sys.stderr)
    return False


def _load(path, shape):
  """Reads `[sample_rows, sample_length]` int32; raises if it is damaged."""
  samples = np.load(path)
  if samples.shape != shape or samples.dtype != np.int32:
    raise ValueError(f"{samples.dtype}{list(samples.shape)}, not "
                     f"int32{list(shape)}")
  return samples


def _write(config, data, teacher):
  prompts, lengths = data.prompts(config.sample_rows)
  key = jax.random.key(config.seed)
  rows, width = prompts.shape
  batches = []
  with tqdm.tqdm(total=rows, desc="teacher samples", unit="row",
                 disable=not multihost.first()) as bar:
    for start in range(0, rows, config.sample_batch):
      # The last batch is filled up to the compiled shape.
      chosen = np.arange(start, start + config.sample_batch) % rows
      keys = row_keys.of_rows(jax.random.fold_in(key, start), len(chosen))
      out = mesh_lib.generate(
          teacher, keys, prompts[chosen], lengths[chosen],
          method=dj.methods.autoregressive(), sampling=dj.Sampling(),
          eos_id=data.eos_id, max_new_tokens=config.sample_length - width)
      batches.append(np.asarray(out.tokens))
      bar.update(min(config.sample_batch, rows - start))
  return np.concatenate(batches)[:rows]
