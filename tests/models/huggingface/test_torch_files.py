"""Files of `torch.save`: written by hand, by torch, and by an enemy."""

import collections
import json
import pickle
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest

from models.huggingface import tensor_files
from support import torch_writer
from support.torch_writer import number, state_dict, tensor, text

_VALUES = np.arange(12, dtype=np.float32)
_DATA = {"0": _VALUES.tobytes(),
         "1": _VALUES.astype(ml_dtypes.bfloat16).tobytes()}
_MATRIX = state_dict({"matrix": tensor((3, 4), (4, 1))})


def write(path, pickled=_MATRIX, data=None, **more):
  torch_writer.write(path, pickled, _DATA if data is None else data, **more)


def one(*args, **kwargs):
  return state_dict({"a": tensor(*args, **kwargs)})


@pytest.fixture(name="path")
def _path(tmp_path):
  return tmp_path / tensor_files.TORCH


def test_a_file_written_by_hand(path):
  write(path, state_dict(dict(
      matrix=tensor((3, 4), (4, 1)), transposed=tensor((4, 3), (1, 4)),
      columns=tensor((3, 2), (4, 1), offset=1),
      scalar=tensor((), (), offset=5), empty=tensor((0, 3), (3, 1)),
      half=tensor((2, 4), (4, 1), offset=4, key="1", kind="BFloat16"))),
        byteorder=b"little")
  actual = tensor_files.tensors(path.parent)
  matrix = _VALUES.reshape(3, 4)
  for name, expected in {
      "matrix": matrix, "transposed": matrix.T, "columns": matrix[:, 1:3],
      "scalar": np.float32(5), "empty": np.zeros((0, 3), np.float32),
      "half": matrix[1:].astype(ml_dtypes.bfloat16)}.items():
    got = actual[name].read()
    assert got.dtype == expected.dtype and not actual[name].refusal
    assert actual[name].shape == got.shape
    np.testing.assert_array_equal(got, expected)


def test_several_files(path):
  folder = path.parent
  for i, name in enumerate(("a", "b")):
    write(folder / f"pytorch_model-{i}.bin",
          state_dict({name: tensor((2,), (1,), offset=i)}))
  (folder / f"{tensor_files.TORCH}.index.json").write_text(json.dumps(
      {"weight_map": {"a": "pytorch_model-0.bin", "b": "pytorch_model-1.bin"}}))
  tensors = tensor_files.tensors(folder)
  assert [tensors[name].read().tolist() for name in "ab"] == [[0, 1], [1, 2]]


@pytest.mark.parametrize("instructions, refusal", [
    (tensor((3, 4), (0, 1)), r"of shape \(3, 4\) has overlapping strides"),
    (tensor((3, 4), (3, 1)), r"overlapping strides \(3, 1\)"),
    (tensor((3,), (1,), count=48, kind="Byte"), "has type uint8; F64, F32")])
def test_tensors_that_are_not_read(path, instructions, refusal):
  write(path, state_dict({"mask": instructions, "matrix": tensor((2,), (1,))}))
  tensors = tensor_files.tensors(path.parent)
  assert tensors["matrix"].read().tolist() == [0, 1]
  with pytest.raises(AssertionError, match=refusal):
    assert not tensors["mask"].refusal


class _Call:
  """Pickled as a call of a function."""

  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


_TUPLES = b")" + b"\x85" * 100_000


@pytest.mark.parametrize("pickled, message", [
    (pickle.dumps({"a": _Call(eval, "1")}, 2), "asks for '__builtin__ eval'"),
    (pickle.dumps({"a": _Call(eval, "1")}, 4), "asks for 'builtins eval'"),
    (b"cos\nsystem\n" + text("true") + b"\x85R.", "asks for 'os system'"),
    (b"(" + text("true") + b"ios\nsystem\n.", "has the instruction INST"),
    (b"ctorch.hub\nload\n.", "asks for 'torch.hub load'"),
    (pickle.dumps({"a": bytearray(9)}, 5), "instruction BYTEARRAY8"),
    (b"\x82\x01.", "has the instruction EXT1"),
    (b"ccollections\nOrderedDict\n" + _TUPLES + b"\x85\x85R.", "is damaged"),
    (b"}" + _TUPLES + b"Ns.", "is damaged"),
    (b"]" * 100_000 + b"a" * 99_999 + b".", "a value of type list, not a dict"),
    (state_dict({"a": b"]q\0h\0a"}), "'a' is of type list, no tensor"),
    (state_dict({"a": number(3)}), "'a' is of type int"),
    (state_dict({"a": b"r\xff\xff\xff\xff"}), "is damaged"),
    (b"}" + number(1) + tensor((1,), (1,)) + b"s.", "1 is of type StoredTens"),
    (one((4, 4), (4, 1)), "is not within 12 numbers"),
    (one((2,), (12,)), "is not within 12 numbers"),
    (one((1,), (1,), offset=12), "is not within 12 numbers"),
    (one((1,), (1,), offset=-1), "storage_offset=-1: 0 to"),
    (one((2,), (-1,)), "stride=-1: 0 to"),
    (one((2,), (1, 1)), "1 sizes and 2 strides"),
    (one((1,) * 99, (1,) * 99), "99 sizes and 99 strides"),
    (one((2,), (1,), count=13), "48 bytes, not 13 numbers"),
    (one((2,), (1,), key="1"), "24 bytes, not 12 numbers of"),
    (one((2,), (1,), key="../0"), "'data/../0' is missing"),
    (one((2,), (1,), kind="ComplexFloat"),
     "asks for 'torch ComplexFloatStorage'"),
    (_MATRIX[:-1], "pickle exhausted before seeing STOP"),
    (b"", "pickle exhausted"),
    (b"." + bytes(9 << 20), "data.pkl has 9437185 bytes: at most 8388608"),
])
def test_pickles_of_an_enemy(path, pickled, message):
  write(path, pickled)
  with pytest.raises(ValueError, match=message) as error:
    tensor_files.tensors(path.parent)
  assert str(error.value).startswith(f"'{path}' cannot be read: ")
  assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("arguments, message", [
    (dict(compression=zipfile.ZIP_DEFLATED), "is compressed or encrypted"),
    (dict(byteorder=b"big"), "byte order b'big': little is supported"),
    (dict(data={}), "'data/0' is missing"),
    ({"x/data.pkl": b""}, "one data.pkl, and different names, are needed")])
def test_archives_of_an_enemy(path, arguments, message):
  write(path, **arguments)
  with pytest.raises(ValueError, match=message):
    tensor_files.tensors(path.parent)


def test_an_archive_with_a_name_twice(path):
  write(path)
  with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    archive.writestr("archive/data/0", b"")
  with pytest.raises(ValueError, match="one data.pkl, and different names"):
    tensor_files.tensors(path.parent)


@pytest.mark.parametrize("content, message", [
    (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    (pickle.dumps(0x1950a86a20f9469cfc6c, 2), "format of torch before 1.6"),
    (b"", "not a zip file")])
def test_files_of_another_format(path, content, message):
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message):
    tensor_files.tensors(path.parent)


def test_bytes_of_a_file_changed(path):
  write(path)
  whole = path.read_bytes()
  for i in range(0, len(whole), 3):
    path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x15]) + whole[i + 1:])
    try:
      for x in tensor_files.tensors(path.parent).values():
        assert x.refusal or x.read().shape == x.shape
    except ValueError as e:
      assert str(path) in str(e)


@pytest.mark.parametrize("protocol", [2, 4])
def test_files_that_torch_writes(path, protocol):
  torch = pytest.importorskip("torch")
  base = torch.arange(24.0).reshape(4, 6)
  saved = collections.OrderedDict(
      base=base, transposed=base.T, columns=base[:, 2:4], rows=base[1:3],
      half=base.half(), bfloat16=base.bfloat16(), double=base.double(),
      integers=base.long(), scalar=torch.tensor(3.5), empty=torch.zeros(0, 2),
      parameter=torch.nn.Parameter(base[0]))
  saved._metadata = {"": {"version": 1}}  # pylint: disable=protected-access
  torch.save(saved, path, pickle_protocol=protocol)
  actual = tensor_files.tensors(path.parent)
  assert list(actual) == list(saved)
  for name, x in actual.items():
    expected = saved[name].detach()
    assert x.integer == (name == "integers") and not x.refusal
    assert str(x.read().dtype) == str(expected.dtype).removeprefix("torch.")
    assert x.shape == tuple(expected.shape)
    np.testing.assert_array_equal(x.read().astype(np.float64),
                                  expected.double().numpy())


def test_what_torch_writes_that_is_no_dict_of_tensors(path):
  torch = pytest.importorskip("torch")
  for value, message in (
      (torch.nn.Linear(2, 2), "asks for 'torch.nn.modules.linear Linear'"),
      ({"model": {"a": torch.ones(2)}}, "'model' is of type dict, no tensor")):
    torch.save(value, path)
    with pytest.raises(ValueError, match=message):
      tensor_files.tensors(path.parent)
  torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
  with pytest.raises(ValueError, match="format of torch before 1.6"):
    tensor_files.tensors(path.parent)
