"""Reads parameters from a model's Orbax folder: names, shapes, finite,
digests."""

import contextlib
import dataclasses

import jax
import numpy as np
import orbax.checkpoint as ocp

from models import transformer
from models.checkpoints import digests
from models.folders import atomic
from models.transformer import layer_stack
from models.transformer import quantization

CONFIG = "config.json"


def params(path, config: transformer.Config, shardings=None, stack=False):
  """Reads the parameters of an architecture from an Orbax folder, in the types
  of `config`. `stack`: scan the saved unrolled layers. `shardings` as in
  `checkpoints.load`. Raises FileNotFoundError, or ValueError naming folder and
  parameter."""
  if not path.is_dir():
    raise FileNotFoundError(
        f"Checkpoint '{path.parent}': no folder {path.name} in it.")
  made = transformer.abstract_params(config)
  whole = transformer.abstract_params(
      dataclasses.replace(config, weights=quantization.DTYPE))
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = lambda tree: jax.tree.map(lambda _: device, tree)
  saved = _saved(path)
  _check_shapes(path, saved, whole)
  known = digests.read(path.parent)
  by_one = config.weights in (quantization.INT8, quantization.INT4)
  read = whole if by_one else made
  # A digest covers the stored bytes.
  read = _as_saved(read, saved, types=known is not None)
  if stack:
    made = transformer.abstract_params(
        dataclasses.replace(config, scan_layers=True))
  if by_one or stack:
    return _one_by_one(path, read, made, shardings, known, config.dtype)
  return _at_once(path, read, made, shardings(made), known)


def check_types(path, config: transformer.Config) -> None:
  """Raises ValueError unless parameters are stored as `config` has them."""
  for name, (_, dtype) in _saved(path).items():
    if dtype != config.dtype:
      raise ValueError(f"'{path}': parameter {name} has type {dtype}, but "
                       f"{CONFIG} has dtype={config.dtype!r}.")


def _at_once(path, read, made, shardings, known):
  """Reads all parameters in the types of `read`; returns them in `made`'s."""
  read = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=sharding), read, shardings)
  with ocp.StandardCheckpointer() as checkpointer, _readable(path):
    tree = checkpointer.restore(path, read)
  keys = [key for key, _ in jax.tree_util.tree_leaves_with_path(tree)]
  left, structure = jax.tree.flatten(tree)
  del tree
  left.reverse()
  leaves = []
  for key, leaf in zip(keys, jax.tree.leaves(made)):
    # Nothing else holds it: what was read in another type goes at once.
    x = _checked(path, known, transformer.param_name(key), left.pop(),
                 leaf.shape)
    x = x if x.dtype == leaf.dtype else x.astype(leaf.dtype)
    atomic.check_finite(path.parent, transformer.param_name(key), x)
    leaves.append(x)
  return jax.tree.unflatten(structure, leaves)


def _one_by_one(path, whole, made, shardings, known, dtype):
  """Reads each parameter as in `whole`; returns it by `dtype` as in `made`."""
  def put(key, leaf, sharding):
    def only(this, others):
      return jax.tree_util.tree_map_with_path(
          lambda other, leaf: this(leaf) if other == key else others, whole)

    # Devices read their parts, unless the host rounds a matrix.
    on_host = quantization.is_matrix(leaf)
    how = lambda leaf: (
        ocp.RestoreArgs(np.ndarray, leaf.dtype) if on_host
        else ocp.ArrayRestoreArgs(sharding=sharding, dtype=leaf.dtype))
    with _readable(path):
      read = checkpointer.restore(path, args=ocp.args.PyTreeRestore(
          only(lambda leaf: leaf, ocp.PLACEHOLDER),
          only(how, ocp.RestoreArgs(restore_type=None))))
    [x] = [leaf for leaf in jax.tree.leaves(read)
           if leaf is not ocp.PLACEHOLDER]
    name = transformer.param_name(key)
    x = _checked(path, known, name, x, quantization.shape(leaf))
    x = x.astype(dtype if on_host else leaf.dtype)
    atomic.check_finite(path.parent, name, x)
    return quantization.to_devices(leaf, sharding, x) if on_host else x

  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    if layer_stack.is_stacked(whole):  # As they were saved.
      return jax.tree_util.tree_map_with_path(
          put, made, shardings(made), is_leaf=quantization.is_matrix)
    return layer_stack.place_all(made, shardings, put)


def _checked(path, known, name, x, shape):
  """Returns a parameter of that shape; an error if it is not what was saved."""
  if known is not None:
    digests.check(path.parent, known, name, x)
  return x if x.shape == shape else x.reshape(shape)


@contextlib.contextmanager
def _readable(path):
  """Turns what orbax raises into a `ValueError` that names the folder."""
  try:
    yield
  except Exception as e:  # Orbax raises nothing more special.
    reason = (str(e).splitlines() or [""])[0]
    if not reason or isinstance(e, LookupError):
      reason = f"{type(e).__name__} {reason}"
    raise ValueError(f"'{path}' cannot be read by orbax: {reason}") from e


def _saved(path):
  with ocp.StandardCheckpointer() as checkpointer, _readable(path):
    saved = checkpointer.metadata(path).item_metadata
    if saved is not None:
      leaves = jax.tree_util.tree_leaves_with_path(saved.tree)
      return {transformer.param_name(key):
              (tuple(leaf.shape), np.dtype(leaf.dtype).name)
              for key, leaf in leaves}
  raise ValueError(f"'{path}' is damaged: orbax finds no metadata in it.")


def _check_shapes(path, saved, expected):
  """Raises an error unless names and shapes match a tree's. Older folders
  have vectors `[..., F]` as `[..., F, 1]`."""
  shapes = {transformer.param_name(key): leaf.shape for key, leaf
            in jax.tree_util.tree_leaves_with_path(expected)}
  for name in sorted(saved.keys() | shapes.keys()):
    shape, dtype = saved.get(name, (None, None))
    if name not in shapes or shape not in (shapes[name], (*shapes[name], 1)):
      raise ValueError(
          f"'{path}': parameter {name} has shape {shape}, but {CONFIG} asks "
          f"for {shapes.get(name)}.")
    if dtype not in transformer.DTYPES:
      raise ValueError(f"'{path}': parameter {name} has type {dtype}; "
                       f"{', '.join(transformer.DTYPES)} are allowed.")


def _as_saved(tree, saved, types):
  """Returns a tree of shapes as they are stored, and of types if asked."""
  def stored(key, leaf):
    shape, dtype = saved[transformer.param_name(key)]
    return jax.ShapeDtypeStruct(shape, dtype if types else leaf.dtype)

  return jax.tree_util.tree_map_with_path(stored, tree)
