"""Hugging Face folders: their files, conversions, and what is wrong in them."""

import dataclasses
import functools
import json
import os
import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoints, transformer
from models.folders import atomic
from models.huggingface import config as hf_config, convert, tensor_files
from models.text import tokenizers
from models.transformer import quantization
from support import tiny_models as tiny
from support.tiny_families import CONFIGS

NORM = "model.norm.weight"


@pytest.fixture(name="llama")
def _llama(tmp_path):
  """A folder as transformers would write it."""
  written(tmp_path / "hf", "llama")
  return tmp_path / "hf"


def written(folder, name):
  """Writes a model; returns its parameters, and the tensors of the folder."""
  params = tiny.random_model(CONFIGS[name]).params
  convert.to_hf(folder, CONFIGS[name], params)
  return params, read(folder)


def read(folder):
  return {name: x.read() for name, x in tensor_files.tensors(folder).items()}


def write(folder, arrays, file=tensor_files.SAFETENSORS):
  tensor_files.write(folder / file, {name: x.shape for name, x in
                                     arrays.items()}, "float32", arrays.get)


def shard(folder):
  """Cuts the file of a folder in two; returns the index."""
  arrays = read(folder)
  (folder / tensor_files.SAFETENSORS).unlink()
  files = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(arrays)}
  for file in set(files.values()):
    write(folder, {name: arrays[name] for name in arrays
                   if files[name] == file}, file)
  index = folder / "model.safetensors.index.json"
  index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
  return index


def assert_equal(ours, theirs):
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def assert_read(folder, params):
  assert_equal(checkpoints.from_hf(folder)[1], params)


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(tmp_path, name):
  model = tiny.random_model(CONFIGS[name])
  checkpoints.to_hf(tmp_path / "hf", CONFIGS[name], model.params)
  lm, params = checkpoints.from_hf(tmp_path / "hf")
  assert lm is model.lm
  assert_equal(params, model.params)
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("name", ["llama", "opt", "gemma3_text", "gpt2",
                                  "gpt_neox", "mixtral"])
def test_scanned_layers_there_and_back(tmp_path, name):
  model = tiny.random_model(CONFIGS[name])
  scanned = transformer.stack_layers(model.params)
  checkpoints.to_hf(tmp_path / "hf", dataclasses.replace(
      CONFIGS[name], scan_layers=True), scanned)
  assert_read(tmp_path / "hf", model.params)
  assert_equal(checkpoints.from_hf(tmp_path / "hf", scan_layers=True)[1],
               scanned)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types(llama, tmp_path, dtype):
  expected = jax.tree.map(lambda x: x.astype(dtype),
                          tiny.random_model(tiny.LLAMA).params)
  lm, params = checkpoints.from_hf(llama, dtype=dtype)
  assert_equal(params, expected)
  assert lm.init_cache(1, 1).keys[0].dtype == jnp.dtype(dtype)
  config = dataclasses.replace(tiny.LLAMA, dtype=dtype)
  checkpoints.to_hf(tmp_path / "small", config, params)
  assert_equal(checkpoints.from_hf(tmp_path / "small")[1], expected)


def test_tensors_in_two_files_and_some_that_make_no_difference(llama):
  params = tiny.random_model(tiny.LLAMA).params
  write(llama, read(llama) | {
      "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2)})
  assert_read(llama, params)
  shard(llama)
  assert_read(llama, params)


def test_a_tied_head_may_be_there_twice(tmp_path):
  params, arrays = written(tmp_path, "mistral")
  arrays["lm_head.weight"] = head = np.array(params["embedding"])
  write(tmp_path, arrays)
  assert_read(tmp_path, params)
  head[3, 2] += 1
  write(tmp_path, arrays)
  with pytest.raises(ValueError, match="lm_head.weight differs from model.emb"):
    checkpoints.from_hf(tmp_path)


def test_names_without_a_base(tmp_path):
  params, arrays = written(tmp_path, "opt")
  write(tmp_path, {name.removeprefix("model."): x
                   for name, x in arrays.items()})
  assert_read(tmp_path, params)


def test_published_names_of_gpt_2(tmp_path):
  params, arrays = written(tmp_path, "gpt2")
  arrays = {name.removeprefix("transformer."): x for name, x in arrays.items()}
  assert arrays["h.0.attn.c_attn.weight"].shape == (16, 48)
  assert arrays["h.0.attn.c_attn.bias"].shape == (48,)
  arrays |= {"h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32),
             "h.0.attn.masked_bias": np.array(-1e4, np.float32)}
  write(tmp_path, arrays)
  assert_read(tmp_path, params)
  # Some files have them as bytes.
  path = tmp_path / tensor_files.SAFETENSORS
  path.write_bytes(path.read_bytes().replace(
      b'"h.0.attn.bias": {"dtype": "F32"', b'"h.0.attn.bias": {"dtype": "I32"'))
  assert_read(tmp_path, params)
  write(tmp_path, {**arrays, "h.0.crossattention.bias": np.ones(2)})
  with pytest.raises(ValueError, match="transformer.h.0.crossattention.bias is "
                     "not one of this architecture"):
    checkpoints.from_hf(tmp_path)


def test_published_names_of_gpt_neox(tmp_path):
  """Heads one after the other, each with query, key and value; with masks."""
  config = CONFIGS["gpt_neox"]
  params, arrays = written(tmp_path, "gpt_neox")
  layer = params["layers"]["layer_0"]["attention"]
  prefix, size = "gpt_neox.layers.0.attention.", config.head_dim
  fused = arrays[f"{prefix}query_key_value.weight"]
  for i, name in enumerate(("query", "key", "value")):
    for head in range(config.num_heads):
      np.testing.assert_array_equal(
          fused[(3 * head + i) * size:][:size],
          layer[name]["kernel"][head * size:][:size])
  arrays |= {f"{prefix}bias": np.ones((1, 1, 8, 8), np.float32),
             f"{prefix}masked_bias": np.array(-1e9, np.float32),
             f"{prefix}rotary_emb.inv_freq": np.ones(1, np.float32)}
  write(tmp_path, arrays)
  assert_read(tmp_path, params)
  # Transformers 5 calls the head as all families do.
  arrays["lm_head.weight"] = arrays.pop("embed_out.weight")
  write(tmp_path, arrays)
  assert_read(tmp_path, params)
  write(tmp_path, {**arrays, f"{prefix}dense.scale": np.ones(2)})
  with pytest.raises(ValueError, match="attention.dense.scale is not one of"):
    checkpoints.from_hf(tmp_path)


def test_several_matrices_in_one_tensor(tmp_path):
  params, arrays = written(tmp_path, "phi3")
  layer = params["layers"]["layer_1"]
  name = "model.layers.1.self_attn.qkv_proj.weight"
  for fused, module, parts in (
      (name, "attention", ("query", "key", "value")),
      ("model.layers.1.mlp.gate_up_proj.weight", "feed_forward",
       ("gate", "up"))):
    np.testing.assert_array_equal(arrays[fused], np.concatenate(
        [layer[module][x]["kernel"] for x in parts]))
  write(tmp_path, {**arrays, name: arrays[name][1:]})
  with pytest.raises(ValueError, match=rf"{name} has shape \(31, 16\), but "
                     r"config.json asks for \(32, 16\)"):
    checkpoints.from_hf(tmp_path)


@pytest.mark.parametrize("base", ["language_model.model.",
                                  "model.language_model."])
def test_names_of_a_model_with_images(tmp_path, base):
  params, arrays = written(tmp_path, "gemma3_text")
  fields = json.loads((tmp_path / hf_config.FILE).read_text())
  fields.pop("architectures")
  (tmp_path / hf_config.FILE).write_text(json.dumps(
      {"model_type": "gemma3", "text_config": fields, "vision_config": {}}))
  write(tmp_path, {
      "vision_tower.a.weight": np.ones(2),
      "model.multi_modal_projector.b": np.ones(2),
      **{name.replace("model.", base, 1): x for name, x in arrays.items()}})
  lm, found = checkpoints.from_hf(tmp_path)
  assert lm is tiny.random_model(CONFIGS["gemma3_text"]).lm
  assert_equal(found, params)


def _bytes(change):
  """A damage to the bytes of the file of tensors."""
  def damage(folder):
    path = folder / tensor_files.SAFETENSORS
    path.write_bytes(change(path.read_bytes()))

  return damage


def _tensor(name, x):
  """A damage that sets a tensor, or removes it where that is None."""
  def damage(folder):
    arrays = {**read(folder), name: x}
    write(folder, {name: x for name, x in arrays.items() if x is not None})

  return damage


def _flipped_bit(data):
  at = data.index(b'"shape"') + 10
  return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


def _hole(data):
  size = 8 + int.from_bytes(data[:8], "little")
  header = json.loads(data[8:size])
  for entry in list(header.values())[2:]:
    entry["data_offsets"] = [x + 4 for x in entry["data_offsets"]]
  header = json.dumps(header).encode()
  return (len(header).to_bytes(8, "little") + header + bytes(4) + data[size:])


def _missing_shard(folder):
  shard(folder)
  (folder / "model-1.safetensors").unlink()


def _index_that_promises_more(folder):
  index = shard(folder)
  names = json.loads(index.read_text())
  names["weight_map"]["model.more"] = "model-0.safetensors"
  index.write_text(json.dumps(names))


def _twice(folder):
  shard(folder)
  for file in ("model-0.safetensors", "model-1.safetensors"):
    write(folder, {NORM: np.ones(16, np.float32)}, file)


def _unknown_field(folder):
  path = folder / hf_config.FILE
  path.write_text(path.read_text().replace("{", '{"attention_sink": 4,', 1))


_truncated = _bytes(lambda x: x[:-100])
# What is done to a folder, and the error that tells.
DAMAGES = {
    "truncated": (_truncated, "model.safetensors' is damaged: .* bytes, but"),
    "nothing": (_bytes(lambda x: b"\x07"),
                "is damaged: its header would have 7 bytes, and the file"),
    "length": (_bytes(lambda x: b"\x03" + x[1:]),
               "model.safetensors' is damaged"),
    "flipped bit": (_bytes(_flipped_bit), "model.safetensors' is damaged"),
    "missing": (_tensor(NORM, None), f"tensor {NORM} is missing"),
    "extra": (_tensor("model.layers.2.mlp.up_proj.weight", np.ones(2)),
              "tensor model.layers.2.mlp.up_proj.weight is not one of this"),
    "shape": (_tensor(NORM, np.zeros(15)),
              rf"tensor {NORM} has shape \(15,\), but config.json asks for "
              r"\(16,\)"),
    "no weights": (lambda x: (x / tensor_files.SAFETENSORS).unlink(),
                   "neither model.safetensors nor pytorch_model.bin"),
    "shard": (_missing_shard, "names model-1.safetensors, which is missing"),
    "index": (lambda x: shard(x).write_text('{"weight_map": 3}'),
              "index.json' is damaged: a weight_map is needed"),
    "more": (_index_that_promises_more,
             "tensor model.more is not in model-0.safet"),
    "twice": (_twice, f"{NORM} is in model-1.safetensors and in model-0.safe"),
    "NaN": (_tensor(NORM, np.full(16, np.nan)),
            "safetensors': parameter norm/scale has infinite or NaN val"),
    "hole": (_bytes(_hole), "begins at byte .*, but the one before it ends at"),
    "integers": (_bytes(lambda x: x.replace(b'"F32"', b'"I32"')),
                 "has type I32; F64, F32, F16, BF16, F8_E4M3, I64 are supp"),
    "tokenizer": (lambda x: (x / "tokenizer.json").write_text("{}"),
                  "its tokenizer cannot be read"),
    "field": (_unknown_field, "attention_sink=4 of llama is not supported"),
}


@pytest.mark.parametrize("damage, message", DAMAGES.values(), ids=DAMAGES)
def test_damages_are_told_and_leave_nothing(llama, tmp_path, damage, message):
  damage(llama)
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    checkpoints.convert(llama, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_file_that_ends_while_it_is_read(llama, tmp_path, monkeypatch):
  opened = convert.open_folder(llama)
  monkeypatch.setattr(convert, "open_folder", lambda *_, **__: opened)
  _truncated(llama)
  with pytest.raises(ValueError, match="ends within tensor"):
    checkpoints.convert(llama, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_converted_is_as_saved(llama, tmp_path):
  tokenizer = tokenizers.train(["a b a b"], 260)
  tokenizers.save(tokenizer, llama)
  (llama / tokenizers.CONFIG).write_text('{"eos_token": "<|endoftext|>"}')
  assert checkpoints.convert(llama, tmp_path / "out") == tiny.LLAMA
  lm, params = checkpoints.load(tmp_path / "out")
  model = tiny.random_model(tiny.LLAMA)
  assert_equal(params, model.params)
  assert lm is model.lm
  assert tokenizers.load(tmp_path / "out").to_str() == tokenizer.to_str()
  assert tokenizers.eos_id(tokenizer, tmp_path / "out") == 0
  for path in (tmp_path / "out").rglob("*"):
    assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()


def test_one_tensor_at_a_time(llama, tmp_path, monkeypatch):
  config, readers = convert.open_folder(llama)
  references, alive = [], []

  def watch(read):
    alive.append(sum(x() is not None for x in references))
    array = read()
    references.append(weakref.ref(array))
    return array

  watched = {name: functools.partial(watch, read)
             for name, read in readers.items()}
  monkeypatch.setattr(convert, "open_folder", lambda *_, **__:
                      (config, watched))
  checkpoints.convert(llama, tmp_path / "out")
  assert len(alive) == len(readers)
  assert max(alive) <= 1


def test_exported_and_loaded_directly(tmp_path):
  model = tiny.random_model(tiny.LLAMA)
  checkpoints.save(tmp_path / "ours", tiny.LLAMA, model.params,
                   tokenizers.train(["a b a b"], 260))
  checkpoints.export(tmp_path / "ours", tmp_path / "theirs", dtype="bfloat16")
  lm, params = checkpoints.load(tmp_path / "theirs", dtype="float32")
  assert lm is model.lm
  assert_equal(params, jax.tree.map(
      lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), model.params))
  described = json.loads((tmp_path / "theirs" / tokenizers.CONFIG).read_text())
  assert described["eos_token"] == tokenizers.EOS
  fields = json.loads((tmp_path / "theirs" / hf_config.FILE).read_text())
  assert fields["eos_token_id"] == 0


_ON_A_MESH = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from models import checkpoints
mesh = jax.make_mesh((2, 4), ("data", "model"))

def shardings(tree):
  return jax.tree.map(lambda leaf: NamedSharding(
      mesh, PartitionSpec("model" if leaf.shape[0] % 4 == 0 else None)), tree)

for load, folder in zip((checkpoints.from_hf, checkpoints.load), sys.argv[1:]):
  parts = load(folder, shardings=shardings)[1]
  jax.tree.map(np.testing.assert_array_equal, parts, load(folder)[1])
  kernel = parts["layers"]["layer_0"]["attention"]["query"]["kernel"]
  assert len(kernel.sharding.device_set) == 8
  print(kernel.addressable_shards[0].data.shape)
"""


@pytest.mark.long
def test_a_mesh_of_eight_devices(python, llama, tmp_path):
  checkpoints.convert(llama, tmp_path / "out")
  got = python("-c", _ON_A_MESH, llama, tmp_path / "out", XLA_FLAGS=(
      f"{os.environ.get('XLA_FLAGS', '')} "
      "--xla_force_host_platform_device_count=8"))
  assert got.output.splitlines() == ["(4, 16)"] * 2, got.errors


def test_command_line(python, llama, tmp_path):
  """Of a folder that another writes or that is damaged: one line, status 2."""
  def assert_refused(message):
    got = python("-m", "experiments.convert", f"--hf={llama}",
                 f"--out={tmp_path / 'out'}")
    assert got.status == 2, got.errors
    assert len(got.errors.splitlines()) == 1, got.errors
    assert message in got.errors

  with atomic.replacing(tmp_path / "out") as partial:
    (partial / "first").write_text("first")
    assert_refused("is being written by another process")
  assert [x.name for x in (tmp_path / "out").iterdir()] == ["first"]
  assert sorted(x.name for x in tmp_path.iterdir()) == ["hf", "out"]
  shutil.rmtree(tmp_path / "out")
  _truncated(llama)
  assert_refused("is damaged")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_scanned_layers_are_stacked_as_they_are_read(tmp_path, monkeypatch):
  """No second copy of them. Control: one that is stacked afterwards."""
  config = dataclasses.replace(tiny.LLAMA, num_layers=8)
  checkpoints.to_hf(tmp_path / "hf", config, tiny.random_model(config).params)
  before = {id(x) for x in jax.live_arrays()}
  bytes_ = lambda: sum(x.nbytes for x in jax.live_arrays()
                       if id(x) not in before)
  most, put = [], quantization.to_devices

  def spy(*args):
    result = put(*args)
    most.append(bytes_())
    return result

  monkeypatch.setattr(quantization, "to_devices", spy)
  _, params = checkpoints.from_hf(tmp_path / "hf", scan_layers=True)
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  layers = sum(x.nbytes for x in jax.tree.leaves(params["layers"]))
  assert max(most) < size + layers / 4
  single = transformer.unstack_layers(params)
  del params
  stacked = transformer.stack_layers(single)
  assert bytes_() >= size + layers
  del stacked
