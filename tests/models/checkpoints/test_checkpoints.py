"""Saving and loading models."""

import dataclasses
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoints, transformer
from models.checkpoints import digests
from models.folders import resolve
from models.text import tokenizers
from models.transformer import sharding
from support import tiny_models as tiny

CONFIG = transformer.Config(
    vocab_size=11, dim=8, num_layers=3, num_heads=2, num_kv_heads=1,
    head_dim=4, hidden_dim=12, max_length=16)
# Orbax has small arrays in its index, which has checks of its own.
LARGE = dataclasses.replace(CONFIG, vocab_size=400)
PYTHON_DRAFT = resolve.PRETRAINED / "python-draft"
TOKENS = jnp.arange(10).reshape(2, 5)


@pytest.fixture(name="params", scope="module")
def _params():
  return tiny.init(jax.random.key(1), CONFIG)


@pytest.fixture(name="folder")
def _folder(tmp_path, params):
  folder = tmp_path / "model"
  checkpoints.save(folder, CONFIG, params)
  return folder


def _logits(lm, params):
  logits = jax.jit(transformer.causal_logits, static_argnums=0)
  return logits(lm, params, TOKENS)


def _edit(folder, **fields):
  path = folder / checkpoints.CONFIG
  fields = {**json.loads(path.read_text()), **fields}
  path.write_text(json.dumps({k: v for k, v in fields.items() if v != ...}))


def _assert_holds(folder, params):
  jax.tree.map(np.testing.assert_array_equal, checkpoints.load(folder)[1],
               params)


def test_one_folder_holds_everything(tmp_path, params):
  tokenizer = tokenizers.train(["a b a b"], 260)
  folder = tmp_path / "model"
  checkpoints.save(folder, CONFIG, params, tokenizer, {"loss": 2.5})
  assert checkpoints.load(folder)[0] is transformer.language_model(CONFIG)
  _assert_holds(folder, params)
  assert tokenizers.load(folder).get_vocab() == tokenizer.get_vocab()
  metadata = folder / checkpoints.METADATA
  assert json.loads(metadata.read_text()) == {"loss": 2.5}
  assert [path.name for path in tmp_path.iterdir()] == ["model"]
  # It does not tell where it was written.
  for path in folder.rglob("*"):
    assert path.is_dir() or str(folder.parent).encode() not in path.read_bytes()


def test_replaces_an_older_model_and_nothing_else(folder, params):
  changed = jax.tree.map(lambda x: x + 1, params)
  checkpoints.save(folder, CONFIG, changed)
  _assert_holds(folder, changed)
  assert [path.name for path in folder.parent.iterdir()] == ["model"]
  other = folder / "other"
  other.mkdir()
  (other / "notes.txt").write_text("all that I know")
  with pytest.raises(ValueError, match="has 'notes.txt', which is no part of"):
    checkpoints.save(other, CONFIG, params)
  assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_a_failed_save_leaves_the_older_model_or_none(folder, params):
  fail = lambda path: checkpoints.save(path, CONFIG, params,
                                       metadata={"bad": object()})
  with pytest.raises(TypeError):
    fail(folder)
  _assert_holds(folder, params)
  checkpoints.save(folder, CONFIG, params)
  assert [path.name for path in folder.parent.iterdir()] == ["model"]
  with pytest.raises(TypeError):
    fail(folder.parent / "new")
  assert not (folder.parent / "new").exists()


def test_scanned_and_unrolled_agree(tmp_path, folder, params):
  expected = _logits(transformer.language_model(CONFIG), params)
  lm, scanned = checkpoints.load(folder, scan_layers=True)
  kernel = scanned["layers"]["layer"]["attention"]["query"]["kernel"]
  assert kernel.shape == (3, 8, 8)
  np.testing.assert_allclose(_logits(lm, scanned), expected, atol=1e-6)

  config = dataclasses.replace(CONFIG, scan_layers=True)
  checkpoints.save(tmp_path / "scanned", config, scanned)
  lm, unrolled = checkpoints.load(tmp_path / "scanned", scan_layers=False)
  assert lm is transformer.language_model(CONFIG)
  jax.tree.map(np.testing.assert_array_equal, unrolled, params)


@pytest.mark.parametrize("weights", ["dtype", "int8"])
def test_folders_with_vectors_of_two_axes(tmp_path, folder, params, weights):
  old = jax.tree.map(lambda x: x[:, None] if x.ndim == 1 else x, params)
  checkpoints.save(tmp_path / "old", CONFIG, old)
  assert digests.read(tmp_path / "old") == digests.read(folder)
  expected, actual = (checkpoints.load(x, weights=weights)[1]
                      for x in (folder, tmp_path / "old"))
  jax.tree.map(np.testing.assert_array_equal, actual, expected)
  wrong = jax.tree.map(lambda x: x[None] if x.ndim == 1 else x, params)
  checkpoints.save(tmp_path / "wrong", CONFIG, wrong)
  with pytest.raises(ValueError, match=r"has shape \(1, \d+\), but config"):
    checkpoints.load(tmp_path / "wrong")


def test_types_and_shardings(folder, params):
  lm, loaded = checkpoints.load(folder, dtype="bfloat16")
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {jnp.dtype("bfloat16")}
  assert lm.init_cache(1, 1).keys[0].dtype == jnp.bfloat16
  expected = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  jax.tree.map(np.testing.assert_array_equal, loaded, expected)
  mesh = jax.make_mesh((1,), ("model",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  _, loaded = checkpoints.load(
      folder, shardings=lambda tree: jax.tree.map(lambda _: sharding, tree))
  assert {x.sharding for x in jax.tree.leaves(loaded)} == {sharding}


def save_with_scale(folder, params, value):
  """Saves a model one of whose scales is this number."""
  scale = params["norm"]["scale"].at[3].set(value)
  checkpoints.save(folder, CONFIG, {**params, "norm": {"scale": scale}})


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_parameters_that_are_not_finite(tmp_path, params, value):
  """Read as they are, and onto a mesh; a large one, in another type."""
  folder = tmp_path / "model"
  save_with_scale(folder, params, value)
  mesh = jax.make_mesh((1, 1), (sharding.DATA, sharding.MODEL),
                       axis_types=(jax.sharding.AxisType.Auto,) * 2)
  for shardings in (None, sharding.shardings(CONFIG, mesh)):
    with pytest.raises(ValueError, match=f"'{folder}': parameter norm/scale has"
                       " infinite or NaN values in float32"):
      checkpoints.load(folder, shardings=shardings)
  save_with_scale(folder, params, 1e6)
  checkpoints.load(folder)
  with pytest.raises(ValueError, match="norm/scale has .* in float16"):
    checkpoints.load(folder, dtype="float16")


def test_missing_parts(folder):
  for name, missing, message in (
      ("nowhere", folder / "nowhere", "nowhere' is neither a folder"),
      (checkpoints.PARAMS, folder, "no folder params in it"),
      (checkpoints.CONFIG, folder, "no config.json in it")):
    if name != "nowhere":
      (folder / name).rename(folder / f"not {name}")
    with pytest.raises(FileNotFoundError, match=message):
      checkpoints.load(missing)


@pytest.mark.parametrize("damage, message", [
    ("cut", "params' cannot be read by orbax: "),
    ("no metadata", "params' is damaged: orbax finds no metadata"),
])
def test_damaged_params(tmp_path, damage, message):
  folder = tmp_path / "model"
  shutil.copytree(PYTHON_DRAFT, folder)
  params = folder / checkpoints.PARAMS
  if damage == "cut":
    path = max(params.rglob("d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
  else:
    (params / "_METADATA").unlink()
  with pytest.raises(ValueError, match=message) as error:
    checkpoints.load(folder)
  assert "\n" not in str(error.value)


def _damage(folder):
  """Changes one byte of a value of the embedding."""
  value = np.asarray(
      checkpoints.load(folder)[1]["embedding"]).reshape(-1)[:16].tobytes()
  for path in (folder / checkpoints.PARAMS).rglob("d/*"):
    data = bytearray(path.read_bytes())
    at = data.find(value)
    if at >= 0:
      data[at + 5] ^= 4
      path.write_bytes(bytes(data))
      return
  raise AssertionError("the embedding is stored in another way")


@pytest.fixture(name="uncompressed")
def _uncompressed(tmp_path):
  """A model whose bytes can be found in its files: those that do not shrink."""
  params = tiny.init(jax.random.key(1), LARGE)
  noise = np.random.default_rng(0).integers(0, 2**32, (LARGE.vocab_size, 8),
                                            np.uint32)
  # Finite floats of random bits.
  noise = (noise & 0xBFFFFFFF | 0x20000000).astype(np.uint32).view(np.float32)
  folder = tmp_path / "noise"
  checkpoints.save(folder, LARGE, {**params, "embedding": jnp.array(noise)})
  return folder


@pytest.mark.cases(2)
@pytest.mark.parametrize("how", [
    {}, {"dtype": "bfloat16"}, {"weights": "int8"}, {"weights": "bfloat16"},
    {"scan_layers": True}, {"shardings": None}])
def test_a_flipped_bit_is_named(uncompressed, how):
  if "shardings" in how:
    mesh = jax.make_mesh((1, 1), (sharding.DATA, sharding.MODEL),
                         axis_types=(jax.sharding.AxisType.Auto,) * 2)
    how = {"shardings": sharding.shardings(LARGE, mesh)}
  checkpoints.load(uncompressed, **how)
  _damage(uncompressed)
  with pytest.raises(ValueError, match=f"'{uncompressed}': parameter embedding "
                     "is damaged: its digest is"):
    checkpoints.load(uncompressed, **how)


def test_digests_are_added(python, uncompressed):
  before = (uncompressed / digests.FILE).read_text()
  (uncompressed / digests.FILE).unlink()
  got = python("-m", "models.checkpoints", uncompressed)
  assert got.output == f"{uncompressed}: digests.json\n", got.errors
  assert (uncompressed / digests.FILE).read_text() == before
  # Control: without digests nobody knows that it is damaged.
  (uncompressed / digests.FILE).unlink()
  _damage(uncompressed)
  checkpoints.load(uncompressed)


@pytest.mark.parametrize("change, message", [
    (lambda found: found.pop("norm/scale"), "norm/scale must be given"),
    (lambda found: found.update({"norm/scale": 3}), "scale'=3: a value of"),
    (lambda found: found.update({"norm/scale": "0" * 8}), "norm/scale is dam"),
])
def test_damaged_digests(folder, change, message):
  path = folder / digests.FILE
  parsed = json.loads(path.read_text())
  change(parsed)
  path.write_text(json.dumps(parsed))
  with pytest.raises(ValueError, match=message):
    checkpoints.load(folder)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (70_000,), (2, 40_000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_digests_are_the_same_everywhere(shape, dtype):
  x = np.random.default_rng(1).standard_normal(shape).astype(jnp.dtype(dtype))
  host, device = digests._on_host(x), digests._on_devices(jnp.asarray(x))
  assert host == int(device)
  assert digests.of(x) == digests.of(jnp.asarray(x)) == f"{host:08x}"


def test_digests_tell_every_bit_and_place():
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  results = {digests.of(x), digests.of(x[::-1]), digests.of(x + 0)}
  assert len(results) == 2
  for bit in range(32):
    bits = x.view(np.uint32).copy()
    bits[1, 1] ^= np.uint32(1 << bit)
    results.add(digests.of(bits.view(np.float32)))
  assert len(results) == 34


def test_metadata_that_lost_a_key(folder):
  path = folder / checkpoints.PARAMS / "_METADATA"
  fields = json.loads(path.read_text())
  for name in list(fields):
    path.write_text(json.dumps({k: v for k, v in fields.items() if k != name}))
    try:
      checkpoints.load(folder)
    except ValueError as e:
      assert str(folder) in str(e) and "\n" not in str(e)
  path.write_text(json.dumps({"tree_metadata": {"a": {}}}))
  with pytest.raises(ValueError, match="params' cannot be read by orbax: KeyE"):
    checkpoints.load(folder)


@pytest.mark.parametrize("field, value, message", [
    ("num_layers", 10**7, "num_layers=10000000: 1 to 1024"),
    ("dim", 8.0, "dim=8.0: a value of type int"),
    ("norm_eps", float("inf"), "norm_eps=inf: 0 to 1"),
    ("head_dim", 31, "head_dim=31, rope_part=1.0: 31 channels cannot be"),
    ("rope_short_factors", ["a"], r"rope_short_factors\[0\]='a': a value of"),
    ("format", 2, "format=2; 1 is allowed"),
    ("colour", "red", r".*unknown \['colour'\]"),
    ("dim", ..., r".*\['dim'\] must be given")])
def test_fields_that_cannot_be(folder, field, value, message):
  _edit(folder, **{field: value})
  with pytest.raises(ValueError, match=f"config.json': {message}"):
    checkpoints.load(folder)


@pytest.mark.parametrize("field, value, name", [
    ("vocab_size", 12, "embedding has shape (11, 8), but config.json asks for "
                       "(12, 8)"),
    ("num_layers", 2, "layer_2/attention/key/kernel has shape (4, 8), but "
                      "config.json asks for None"),
])
def test_shapes_that_do_not_fit(folder, field, value, name):
  _edit(folder, **{field: value})
  with pytest.raises(ValueError, match=re.escape(name)):
    checkpoints.load(folder)
