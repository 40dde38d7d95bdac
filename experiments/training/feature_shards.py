"""The teacher's hidden states over the texts of a run, kept on disk.

A head is trained on the same texts several times: what it reads of its target
is computed once. A run that was killed goes on after the last file.
"""

import functools
import hashlib
import pathlib

import jax
import ml_dtypes
import numpy as np

from experiments.app import multihost
from experiments.data import batches
from experiments.training import array_files
from experiments.training import head_objectives
from experiments.training import on_mesh

_FOLDER = "features"
_ROWS = 64
# Rows of one forward.
_BATCH = 8
_DTYPE = np.dtype(ml_dtypes.bfloat16)


def with_features(config, head: head_objectives.Chosen, data: batches.Data,
                  target_params, mesh=None) -> batches.Data:
  """Returns data whose batches bring the features that training reads."""
  shards = _Shards(config, head, data.rows)
  shards.write(target_params, mesh)

  def add(batch):
    width = batch.tokens.shape[1] - 1
    return batch._replace(features=shards.read(batch.rows, width))

  return data._replace(
      train=lambda step, samples: add(data.train(step, samples)),
      held_out=lambda count: add(data.held_out(count)))


class _Shards:
  """Files of features; rows are put in the order of their length."""

  def __init__(self, config, head, rows):
    self.head, (self.tokens, ends) = head, rows
    widths = batches.padded(config, ends - 1)
    order = np.argsort(widths, kind="stable")
    self.members = [order[i:i + _ROWS] for i in range(0, len(order), _ROWS)]
    self.widths = [int(widths[x].max()) for x in self.members]
    self.location = np.empty((len(order), 2), np.int64)
    for shard, members in enumerate(self.members):
      self.location[members] = np.stack(
          [np.full(len(members), shard), np.arange(len(members))], axis=1)
    settings = (config.teacher, config.teacher_dtype, head.features,
                self.widths)
    digest = hashlib.sha256(repr(settings).encode() + self.tokens.tobytes())
    self.folder = (pathlib.Path(config.workdir).resolve() / _FOLDER
                   / digest.hexdigest()[:12])

  def read(self, rows, width):
    """Returns `[B, width, F]` of each layer; zeros after the end of a text."""
    dim = self.head.target.dim
    values = np.zeros((len(rows), len(self.head.features), width, dim), _DTYPE)
    for i, (shard, location) in enumerate(self.location[rows]):
      row = np.load(self._path(shard), mmap_mode="r")[location, :, :width]
      values[i, :, :row.shape[1]] = row.view(_DTYPE)
    return tuple(values.swapaxes(0, 1))

  def write(self, target_params, mesh):
    """Writes the files that are not there."""
    self.folder.mkdir(parents=True, exist_ok=True)
    shape = (_ROWS, len(self.head.features), max(self.widths),
             self.head.target.dim)
    size = np.prod(shape) * _DTYPE.itemsize / 1e6
    compute = jax.jit(on_mesh.by_rows(
        mesh, functools.partial(head_objectives.features, self.head)))

    def of_tokens(tokens):
      [tokens] = on_mesh.put_rows(mesh, (tokens,))
      return [on_mesh.on_host(x) for x in compute(target_params, tokens)]

    with multihost.progress(len(self.tokens), "text",
                            desc=f"features, {size:.0f} MB a file") as bar:
      for shard, members in enumerate(self.members):
        array_files.keep(self._path(shard), functools.partial(
            self._features, shard, members, of_tokens))
        bar.update(len(members))

  def _features(self, shard, members, compute):
    # The last forward is filled up to the compiled shape.
    chosen = np.resize(members, -(-len(members) // _BATCH) * _BATCH)
    tokens = np.maximum(self.tokens[chosen, :self.widths[shard]], 0)
    parts = [np.stack(compute(tokens[i:i + _BATCH]), axis=1).astype(_DTYPE)
             for i in range(0, len(tokens), _BATCH)]
    # A type that files of numpy have.
    return np.concatenate(parts)[:len(members)].view(np.uint16)

  def _path(self, shard):
    return self.folder / f"{shard:06}.npy"
