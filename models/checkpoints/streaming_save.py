"""Checkpoints written one parameter at a time.

Orbax takes a tree of arrays; here its leaves read themselves when written.
"""

import dataclasses
from typing import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp

# Parts of a parameter that are read on their own when it is restored onto a
# mesh, and files of the checkpoint; both are held in memory while written.
_CHUNK_BYTES = 64 << 20
_FILE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Unread:
  """An array that has not been read yet."""
  read: Callable[[], np.ndarray]  # `() -> numpy array`


class _Handler(ocp.type_handlers.NumpyHandler):
  """Writes `Unread` as numpy arrays, one after the other."""

  async def serialize(self, values, infos, args=None):
    for value, info, arg in zip(values, infos, args):
      for written in await super().serialize([value.read()], [info], [arg]):
        written.result()
    return []


def save(path, readers: dict[str, Callable[[], np.ndarray]]) -> None:
  """Writes parameters as `ocp.StandardCheckpointer` would. `readers` are
  functions by names such as "layers/layer_0/attention/key/kernel"."""
  tree = {}
  for name, read in readers.items():
    *path_to, last = name.split("/")
    node = tree
    for key in path_to:
      node = node.setdefault(key, {})
    node[last] = Unread(read)
  registry = ocp.type_handlers.create_type_handler_registry(
      (Unread, _Handler()),
      # Without one of these orbax warns that it leaves notes on arrays out.
      (jax.Array, ocp.type_handlers.ArrayHandler()))
  handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
  save_args = jax.tree.map(
      lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), tree)
  with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(path, args=ocp.args.PyTreeSave(
        tree, save_args=save_args, ocdbt_target_data_file_size=_FILE_BYTES))
