"""Writes files as `torch.save` does, instruction by instruction, without torch.
"""

import json
import struct
import zipfile

from models.huggingface import tensor_files

_KINDS = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16"}


def text(x):
  return b"X" + struct.pack("<I", len(x)) + x.encode()


def number(x):
  return b"J" + struct.pack("<i", x)


def numbers(*items):
  return b"(" + b"".join(map(number, items)) + b"t"


def tensor(shape, strides, *, offset=0, key="0", count=12, kind="Float"):
  """Returns the instructions of a tensor."""
  storage = (b"(" + text("storage") + f"ctorch\n{kind}Storage\n".encode()
             + text(key) + text("cpu") + number(count) + b"tQ")
  return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset)
          + numbers(*shape) + numbers(*strides)
          + b"\x89ccollections\nOrderedDict\n)RtR")


def state_dict(instructions):
  """Returns the pickle of a dict from names to instructions of tensors."""
  return (b"\x80\x02}(" + b"".join(
      text(name) + x for name, x in instructions.items()) + b"u.")


def write(path, pickled, storages, compression=zipfile.ZIP_STORED, **more):
  """Writes a file."""
  files = {"data.pkl": pickled, "version": b"3\n", **more, **{
      f"data/{key}": x for key, x in storages.items()}}
  with zipfile.ZipFile(path, "w", compression) as archive:
    for name, x in files.items():
      archive.writestr(f"archive/{name}", x)


def write_arrays(path, arrays):
  """Writes a dict from names to arrays."""
  write(path, state_dict({
      name: tensor(x.shape, [x[0].size, 1][:x.ndim] if x.ndim > 1 else (1,),
                   key=str(i), count=x.size, kind=_KINDS[str(x.dtype)])
      for i, (name, x) in enumerate(arrays.items())}),
        {str(i): x.tobytes() for i, x in enumerate(arrays.values())})


def rewrite(folder, dtype, shards=1):
  """Writes the matrices and vectors of a folder as files of torch instead."""
  arrays = {name: x.read().astype(dtype)
            for name, x in tensor_files.tensors(folder).items()}
  (folder / tensor_files.SAFETENSORS).unlink()
  if shards == 1:
    write_arrays(folder / tensor_files.TORCH, arrays)
    return
  files = {name: f"pytorch_model-{i % shards}.bin"
           for i, name in enumerate(arrays)}
  for file in set(files.values()):
    write_arrays(folder / file, {name: x for name, x in arrays.items()
                                 if files[name] == file})
  (folder / f"{tensor_files.TORCH}.index.json").write_text(
      json.dumps({"weight_map": files}))
