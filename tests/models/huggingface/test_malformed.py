"""Folders whose files hold anything: one line that names the file.

Every field that is read gets every kind of wrong value. What is still accepted
must be an architecture; whatever is not must be a `ValueError`.
"""

import copy
import json
import shutil

import numpy as np
import pytest

from models import checkpoints
from models.huggingface import config as hf_config
from models.huggingface import config_fields, convert, tensor_files
from support import published_configs as published, tiny_models as tiny

_DEEP = json.loads("[" * 60 + "]" * 60)
VALUES = [None, [], ["a"], {}, {"a": [1]}, "text", "", True, -1, 0, 2.5, 31,
          10**7, 10**12, 10**400, -10**30, 1e300, float("inf"), float("nan"),
          _DEEP, "x" * 5000, [None] * 3, [[]], {"factor": {}}]


def places(fields):
  """Paths of all fields, of those in objects too."""
  for name, value in fields.items():
    yield (name,)
    if isinstance(value, dict):
      yield from ((name, *path) for path in places(value))


def changed(fields, path, value):
  fields = copy.deepcopy(fields)
  inner = fields
  for name in path[:-1]:
    inner = inner[name]
  inner[path[-1]] = value
  return fields


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", sorted(published.ALL))
def test_every_field_of_every_wrong_kind(tmp_path, name):
  fields = published.ALL[name]
  refused = 0
  for path in places(fields):
    for value in VALUES:
      try:
        config = published.read(tmp_path, changed(fields, path, value))
      except ValueError as e:
        refused += 1
        assert str(tmp_path / hf_config.FILE) in str(e), (path, value)
        assert "\n" not in str(e) and len(str(e)) < 2000, (path, value)
      else:
        # Whatever is accepted can be written as ours, and read again.
        config_fields.architecture(json.loads(json.dumps(vars(config))))
  assert refused > 3 * len(fields)


@pytest.mark.parametrize("fields, message", [
    ({"num_hidden_layers": 10**7}, "num_hidden_layers=10000000: 1 to 1024"),
    ({"head_dim": 31}, "head_dim=31, rope_part=1.0: 31 channels cannot be rot"),
    ({"vocab_size": 10**12}, "vocab_size=1000000000000: 1 to 16777216"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps=inf: 0 to 1"),
    ({"rope_theta": float("nan")}, "rope_theta=nan: 1 to "),
    ({"model_type": None}, "model_type must be given"),
    ({"rope_scaling": {**published.LLAMA_3_2["rope_scaling"],
                       "low_freq_factor": 4.0}},
     "rope_low_turns=4.0: less than rope_high_turns=4.0"),
])
def test_numbers_that_make_no_model(tmp_path, fields, message):
  with pytest.raises(ValueError, match=message):
    published.read(tmp_path, {**published.LLAMA_3_2, **fields})


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("hf") / "model"
  convert.to_hf(folder, tiny.LLAMA, tiny.random_model(tiny.LLAMA).params)
  return folder


def _header(path):
  data = path.read_bytes()
  size = int.from_bytes(data[:8], "little")
  return json.loads(data[8:8 + size]), data[8 + size:]


def _write(path, header, data):
  header = json.dumps(header).encode()
  path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_every_field_of_a_safetensors_header(folder, tmp_path):
  header, data = _header(folder / tensor_files.SAFETENSORS)
  name = "model.norm.weight"
  path = tmp_path / tensor_files.SAFETENSORS
  for place in ((name,), (name, "dtype"), (name, "shape"),
                (name, "data_offsets")):
    for value in [*VALUES, [-4, 60], [0, 64, 128], ["0", "64"], [1.0, 64.0]]:
      _write(path, changed(header, place, value), data)
      try:
        tensors = tensor_files.tensors(tmp_path)[name]
      except ValueError as e:
        assert str(path) in str(e) and "\n" not in str(e), (place, value)
      else:  # Another type, which is told when it is read.
        assert place == (name, "dtype") and tensors.refusal


@pytest.mark.parametrize("weight_map", [
    *(x for x in VALUES if x != {}), {"a": 3}, {"a": None}, {"a": ["b"]}])
def test_every_kind_of_index(tmp_path, weight_map):
  index = tmp_path / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": weight_map}))
  with pytest.raises(ValueError, match="weight_map"):
    tensor_files.tensors(tmp_path)


@pytest.mark.parametrize("file", [
    "../other/model.safetensors", "{other}/model.safetensors", "..", ".", "",
    "link.safetensors", "inner/model.safetensors", "a\0b", "x" * 300])
def test_an_index_that_leaves_its_folder(folder, tmp_path, file):
  other, model = tmp_path / "other", tmp_path / "model"
  shutil.copytree(folder, other)
  shutil.copytree(folder, model)
  (model / "inner").mkdir()
  (model / tensor_files.SAFETENSORS).rename(
      model / "inner" / tensor_files.SAFETENSORS)
  (model / "link.safetensors").symlink_to(other / tensor_files.SAFETENSORS)
  names, _ = _header(other / tensor_files.SAFETENSORS)
  names.pop("__metadata__")
  (model / "model.safetensors.index.json").write_text(json.dumps({
      "weight_map": {name: file.format(other=other) for name in names}}))
  with pytest.raises(ValueError, match="index.json' names .*, which is not a "
                     "file of its folder"):
    checkpoints.load(model)


def test_an_index_in_the_cache_of_the_hub(folder, tmp_path):
  """Its files are links to a folder beside that of the snapshots."""
  snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
  blobs = tmp_path / "models--a--b" / "blobs"
  for path in (snapshot, blobs):
    path.mkdir(parents=True)
  shutil.copy(folder / hf_config.FILE, snapshot)
  shutil.copy(folder / tensor_files.SAFETENSORS, blobs / "4567")
  (snapshot / "model-1.safetensors").symlink_to("../../blobs/4567")
  names, _ = _header(blobs / "4567")
  names.pop("__metadata__")
  (snapshot / "model.safetensors.index.json").write_text(json.dumps(
      {"weight_map": dict.fromkeys(names, "model-1.safetensors")}))
  _, params = checkpoints.load(snapshot)
  np.testing.assert_array_equal(
      params["embedding"], tiny.random_model(tiny.LLAMA).params["embedding"])
