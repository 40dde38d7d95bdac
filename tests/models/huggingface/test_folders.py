"""Hugging Face folders: their files, conversions, and what is wrong in them."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoints
from models import transformer
from models.folders import atomic
from models.huggingface import config as hf_config
from models.huggingface import convert
from models.huggingface import tensor_files
from models.text import tokenizers
from models.transformer import quantization
from support import tiny_models as tiny

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
CONFIGS = {
    "llama": tiny.LLAMA,
    "mistral": dataclasses.replace(tiny.LLAMA, window=5, tie_embeddings=True,
                                   family="mistral"),
    "qwen2": dataclasses.replace(tiny.LLAMA, qkv_bias=True, family="qwen2"),
    "qwen3": dataclasses.replace(tiny.LLAMA, qk_norm=True, head_dim=6,
                                 family="qwen3"),
    "opt-350m": dataclasses.replace(tiny.OPT, num_kv_heads=4, post_norm=True,
                                    embedding_dim=8),
    "gemma": dataclasses.replace(
        tiny.LLAMA, norm="rms_plus_one", feed_forward="geglu",
        embedding_scale=4.0, family="gemma"),
    "gemma-3": dataclasses.replace(tiny.GEMMA, attention_softcap=0.0),
    "gpt-2": tiny.GPT_2,
    "gpt-neox": tiny.NEOX,
    "olmo-2": dataclasses.replace(
        tiny.LLAMA, reordered_norm=True, joint_qk_norm=True, family="olmo2"),
    "phi-3": dataclasses.replace(tiny.LLAMA, rope_part=0.5, family="phi3"),
    "mixtral": tiny.MIXTRAL,
    "qwen3 with experts": dataclasses.replace(
        tiny.MIXTRAL, qk_norm=True, head_dim=6, normalize_experts=False,
        family="qwen3_moe"),
}


@pytest.fixture(name="llama")
def _llama(tmp_path):
  """A folder as transformers would write it."""
  convert.to_hf(tmp_path / "hf", tiny.LLAMA,
                tiny.random_model(tiny.LLAMA).params)
  return tmp_path / "hf"


def rewrite(folder, change):
  """Writes the tensors of a folder anew, after `change(dict of arrays)`."""
  arrays = {name: x.read() for name, x in tensor_files.tensors(folder).items()}
  change(arrays)
  write(folder / tensor_files.SAFETENSORS, arrays)


def write(path, arrays):
  tensor_files.write(path, {name: x.shape for name, x in arrays.items()},
                     "float32", arrays.get)


def shard(folder):
  """Cuts the file of a folder in two; returns the index."""
  arrays = {name: x.read() for name, x in tensor_files.tensors(folder).items()}
  (folder / tensor_files.SAFETENSORS).unlink()
  files = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(arrays)}
  for file in set(files.values()):
    write(folder / file, {name: arrays[name] for name in arrays
                          if files[name] == file})
  index = folder / "model.safetensors.index.json"
  index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
  return index


def assert_equal(ours, theirs):
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back(tmp_path, name):
  model = tiny.random_model(CONFIGS[name])
  checkpoints.to_hf(tmp_path / "hf", CONFIGS[name], model.params)
  lm, params = checkpoints.from_hf(tmp_path / "hf")
  assert lm is model.lm
  assert_equal(params, model.params)
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("name", ["llama", "opt-350m", "gemma-3", "gpt-2",
                                  "gpt-neox", "mixtral"])
def test_scanned_layers_there_and_back(tmp_path, name):
  model = tiny.random_model(CONFIGS[name])
  config = dataclasses.replace(CONFIGS[name], scan_layers=True)
  scanned = transformer.stack_layers(model.params)
  checkpoints.to_hf(tmp_path / "hf", config, scanned)
  assert_equal(checkpoints.from_hf(tmp_path / "hf")[1], model.params)
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


def test_shards(llama):
  shard(llama)
  assert_equal(checkpoints.from_hf(llama)[1],
               tiny.random_model(tiny.LLAMA).params)


def test_tensors_that_make_no_difference(llama):
  rewrite(llama, lambda arrays: arrays.update(
      {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2)}))
  assert_equal(checkpoints.from_hf(llama)[1],
               tiny.random_model(tiny.LLAMA).params)


def test_a_tied_head_may_be_there_twice(tmp_path):
  model = tiny.random_model(CONFIGS["mistral"])
  convert.to_hf(tmp_path, CONFIGS["mistral"], model.params)
  head = np.array(model.params["embedding"])
  rewrite(tmp_path, lambda arrays: arrays.update({"lm_head.weight": head}))
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)
  head[3, 2] += 1
  rewrite(tmp_path, lambda arrays: arrays.update({"lm_head.weight": head}))
  with pytest.raises(ValueError, match="lm_head.weight differs from model.emb"):
    checkpoints.from_hf(tmp_path)


def test_names_without_a_base(tmp_path):
  """Old files of OPT leave the first part of the names out."""
  model = tiny.random_model(CONFIGS["opt-350m"])
  convert.to_hf(tmp_path, CONFIGS["opt-350m"], model.params)
  write(tmp_path / tensor_files.SAFETENSORS, {
      name.removeprefix("model."): x.read()
      for name, x in tensor_files.tensors(tmp_path).items()})
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)


def test_published_names_of_gpt_2(tmp_path):
  """Without the first part, and with the masks of the attention."""
  model = tiny.random_model(CONFIGS["gpt-2"])
  convert.to_hf(tmp_path, CONFIGS["gpt-2"], model.params)
  arrays = {name.removeprefix("transformer."): x.read()
            for name, x in tensor_files.tensors(tmp_path).items()}
  assert arrays["h.0.attn.c_attn.weight"].shape == (16, 48)
  assert arrays["h.0.attn.c_attn.bias"].shape == (48,)
  arrays |= {"h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32),
             "h.0.attn.masked_bias": np.array(-1e4, np.float32)}
  write(tmp_path / tensor_files.SAFETENSORS, arrays)
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)
  # Some files have them as bytes.
  path = tmp_path / tensor_files.SAFETENSORS
  path.write_bytes(path.read_bytes().replace(
      b'"h.0.attn.bias": {"dtype": "F32"', b'"h.0.attn.bias": {"dtype": "I32"'))
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)
  write(path, {**arrays, "h.0.crossattention.bias": np.ones(2, np.float32)})
  with pytest.raises(ValueError, match="transformer.h.0.crossattention.bias is "
                     "not one of this architecture"):
    checkpoints.from_hf(tmp_path)


def test_published_names_of_gpt_neox(tmp_path):
  """Heads one after the other, each with query, key and value; with masks."""
  config = CONFIGS["gpt-neox"]
  model = tiny.random_model(config)
  convert.to_hf(tmp_path, config, model.params)
  arrays = {name: x.read()
            for name, x in tensor_files.tensors(tmp_path).items()}
  layer = model.params["layers"]["layer_0"]["attention"]
  fused = arrays["gpt_neox.layers.0.attention.query_key_value.weight"]
  size = config.head_dim
  for i, name in enumerate(("query", "key", "value")):
    for head in range(config.num_heads):
      np.testing.assert_array_equal(
          fused[(3 * head + i) * size:][:size],
          layer[name]["kernel"][head * size:][:size])
  prefix = "gpt_neox.layers.0.attention."
  arrays |= {f"{prefix}bias": np.ones((1, 1, 8, 8), np.float32),
             f"{prefix}masked_bias": np.array(-1e9, np.float32),
             f"{prefix}rotary_emb.inv_freq": np.ones(1, np.float32)}
  write(tmp_path / tensor_files.SAFETENSORS, arrays)
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)
  # Transformers 5 calls the head as all families do.
  arrays["lm_head.weight"] = arrays.pop("embed_out.weight")
  write(tmp_path / tensor_files.SAFETENSORS, arrays)
  assert_equal(checkpoints.from_hf(tmp_path)[1], model.params)
  write(tmp_path / tensor_files.SAFETENSORS,
        {**arrays, f"{prefix}dense.scale": np.ones(2, np.float32)})
  with pytest.raises(ValueError, match="attention.dense.scale is not one of"):
    checkpoints.from_hf(tmp_path)


def test_several_matrices_in_one_tensor(tmp_path):
  """As Phi-3 has them."""
  config = CONFIGS["phi-3"]
  params = tiny.random_model(config).params
  convert.to_hf(tmp_path, config, params)
  layer = params["layers"]["layer_1"]
  name = "model.layers.1.self_attn.qkv_proj.weight"
  arrays = tensor_files.tensors(tmp_path)
  np.testing.assert_array_equal(arrays[name].read(), np.concatenate(
      [layer["attention"][x]["kernel"] for x in ("query", "key", "value")]))
  np.testing.assert_array_equal(
      arrays["model.layers.1.mlp.gate_up_proj.weight"].read(), np.concatenate(
          [layer["feed_forward"][x]["kernel"] for x in ("gate", "up")]))
  rewrite(tmp_path, lambda arrays: arrays.update({name: arrays[name][1:]}))
  with pytest.raises(ValueError, match=rf"{name} has shape \(31, 16\), but "
                     r"config.json asks for \(32, 16\)"):
    checkpoints.from_hf(tmp_path)


@pytest.mark.parametrize("base", ["language_model.model.",
                                  "model.language_model."])
def test_names_of_a_model_with_images(tmp_path, base):
  config = CONFIGS["gemma-3"]
  model = tiny.random_model(config)
  convert.to_hf(tmp_path, config, model.params)
  fields = json.loads((tmp_path / hf_config.FILE).read_text())
  fields.pop("architectures")
  (tmp_path / hf_config.FILE).write_text(json.dumps(
      {"model_type": "gemma3", "text_config": fields, "vision_config": {}}))
  arrays = {name.replace("model.", base, 1): x.read()
            for name, x in tensor_files.tensors(tmp_path).items()}
  arrays |= {"vision_tower.a.weight": np.ones(2, np.float32),
             "model.multi_modal_projector.b": np.ones(2, np.float32)}
  write(tmp_path / tensor_files.SAFETENSORS, arrays)
  lm, params = checkpoints.from_hf(tmp_path)
  assert lm is model.lm
  assert_equal(params, model.params)


# What is done to a folder, and the error that tells.
def _truncated(folder):
  path = folder / tensor_files.SAFETENSORS
  path.write_bytes(path.read_bytes()[:-100])


def _cut_to_nothing(folder):
  (folder / tensor_files.SAFETENSORS).write_bytes(b"\x07")


def _header_of_another_length(folder):
  path = folder / tensor_files.SAFETENSORS
  path.write_bytes(b"\x03" + path.read_bytes()[1:])


def _header_with_a_flipped_bit(folder):
  path = folder / tensor_files.SAFETENSORS
  data = bytearray(path.read_bytes())
  data[data.index(b'"shape"') + 10] ^= 1
  path.write_bytes(bytes(data))


def _missing(folder):
  rewrite(folder, lambda arrays: arrays.pop("model.norm.weight"))


def _extra(folder):
  rewrite(folder, lambda arrays: arrays.update(
      {"model.layers.2.mlp.up_proj.weight": np.zeros((24, 16), np.float32)}))


def _wrong_shape(folder):
  rewrite(folder, lambda arrays: arrays.update(
      {"model.norm.weight": np.zeros(15, np.float32)}))


def _no_weights(folder):
  (folder / tensor_files.SAFETENSORS).unlink()


def _missing_shard(folder):
  shard(folder)
  (folder / "model-1.safetensors").unlink()


def _damaged_index(folder):
  shard(folder).write_text('{"weight_map": 3}')


def _index_that_promises_more(folder):
  index = shard(folder)
  names = json.loads(index.read_text())
  names["weight_map"]["model.more"] = "model-0.safetensors"
  index.write_text(json.dumps(names))


def _twice(folder):
  shard(folder)
  for file in ("model-0.safetensors", "model-1.safetensors"):
    write(folder / file, {"model.norm.weight": np.ones(16, np.float32)})


def _not_a_number(folder):
  rewrite(folder, lambda arrays: arrays["model.norm.weight"].fill(np.nan))


def _hole(folder):
  path = folder / tensor_files.SAFETENSORS
  data = path.read_bytes()
  size = 8 + int.from_bytes(data[:8], "little")
  header = json.loads(data[8:size])
  for entry in list(header.values())[2:]:
    entry["data_offsets"] = [x + 4 for x in entry["data_offsets"]]
  header = json.dumps(header).encode()
  path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4)
                   + data[size:])


def _integers(folder):
  path = folder / tensor_files.SAFETENSORS
  path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))


def _damaged_tokenizer(folder):
  (folder / "tokenizer.json").write_text("{}")


def _unknown_field(folder):
  path = folder / hf_config.FILE
  path.write_text(path.read_text().replace("{", '{"attention_sink": 4,', 1))


DAMAGES = {
    _truncated: "model.safetensors' is damaged: .* bytes, but its header",
    _cut_to_nothing: "is damaged: its header would have 7 bytes, and the file",
    _header_of_another_length: "model.safetensors' is damaged",
    _header_with_a_flipped_bit: "model.safetensors' is damaged",
    _missing: "tensor model.norm.weight is missing",
    _extra: "tensor model.layers.2.mlp.up_proj.weight is not one of this",
    _wrong_shape: r"tensor model.norm.weight has shape \(15,\), but config.json"
                  r" asks for \(16,\)",
    _no_weights: "neither model.safetensors nor pytorch_model.bin",
    _missing_shard: "names model-1.safetensors, which is missing",
    _damaged_index: "index.json' is damaged: a weight_map is needed",
    _index_that_promises_more: "tensor model.more is not in model-0.safet",
    _twice: "model.norm.weight is in model-1.safetensors and in model-0.safe",
    _not_a_number: "safetensors': parameter norm/scale has infinite or NaN val",
    _hole: "begins at byte .*, but the one before it ends at",
    _integers: "has type I32; F64, F32, F16, BF16, F8_E4M3, I64 are supported",
    _damaged_tokenizer: "its tokenizer cannot be read",
    _unknown_field: "attention_sink=4 of llama is not supported",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda x: x.__name__[1:])
def test_damages_are_told_and_leave_nothing(llama, tmp_path, damage):
  damage(llama)
  with pytest.raises((ValueError, FileNotFoundError), match=DAMAGES[damage]):
    checkpoints.convert(llama, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_file_that_ends_while_it_is_read(llama, tmp_path, monkeypatch):
  """What has been written by then goes again."""
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
  """All others have been let go when the next one is read."""
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
  """`load` reads either kind of folder."""
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
from models import transformer
theirs, ours = sys.argv[1:]
mesh = jax.make_mesh((2, 4), ("data", "model"))

def shardings(tree):
  return jax.tree.map(lambda leaf: NamedSharding(
      mesh, PartitionSpec("model" if leaf.shape[0] % 4 == 0 else None)), tree)

for load in (checkpoints.from_hf, checkpoints.load):
  whole = load(ours if load is checkpoints.load else theirs)[1]
  parts = load(ours if load is checkpoints.load else theirs,
               shardings=shardings)[1]
  jax.tree.map(np.testing.assert_array_equal, parts, whole)
  kernel = parts["layers"]["layer_0"]["attention"]["query"]["kernel"]
  assert len(kernel.sharding.device_set) == 8
  print(kernel.addressable_shards[0].data.shape)
"""


@pytest.mark.long
def test_a_mesh_of_eight_devices(llama, tmp_path):
  """Each device gets its part, from either kind of folder."""
  checkpoints.convert(llama, tmp_path / "out")
  flags = os.environ.get("XLA_FLAGS", "")
  result = subprocess.run(
      [sys.executable, "-c", _ON_A_MESH, llama, tmp_path / "out"],
      env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY),
           "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8"},
      text=True, capture_output=True, check=False)
  assert result.stdout.splitlines() == ["(4, 16)"] * 2, result.stderr


def _convert(folder, out):
  return subprocess.run(
      [sys.executable, "-m", "experiments.convert", f"--hf={folder}",
       f"--out={out}"], cwd=REPOSITORY, text=True, capture_output=True,
      check=False)


def test_command_line(llama, tmp_path):
  """Of a damaged folder: one line, status 2, and nothing is left."""
  _truncated(llama)
  result = _convert(llama, tmp_path / "out")
  assert result.returncode == 2, result.stderr
  assert len(result.stderr.splitlines()) == 1, result.stderr
  assert "is damaged" in result.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_two_programs_that_write_one_folder(llama, tmp_path):
  """The second is refused, and the first is not disturbed."""
  with atomic.replacing(tmp_path / "out") as partial:
    (partial / "first").write_text("first")
    result = _convert(llama, tmp_path / "out")
    assert result.returncode == 2, result.stderr
    assert "is being written by another process" in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
  assert [x.name for x in (tmp_path / "out").iterdir()] == ["first"]
  assert sorted(x.name for x in tmp_path.iterdir()) == ["hf", "out"]


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
