"""Models in GGUF files: written as llama.cpp's converter does, and read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from models import checkpoints, transformer
from models.folders import resolve
from models.gguf import blocks
from models.huggingface import convert
from models.transformer import rope
from support import gguf_writer, installed, tiny_models as tiny
from support.tiny_families import CONFIGS

gguf = gguf_writer.gguf


# Families by what the package calls them, where that is another name.
ARCHITECTURES = {
    name: {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "mixtral": "llama",
           "gemma3_text": "gemma3", "gpt_neox": "gptneox",
           "llama with biases": "llama"}.get(name, name)
    # Phi-3 comes with factors, see below.
    for name in CONFIGS.keys() - {"mistral", "opt", "phi3"}}
LLAMA_3 = dataclasses.replace(
    tiny.LLAMA, rope_scaling="llama3", rope_factor=4.0, rope_low_turns=1.0,
    rope_high_turns=4.0, rope_original_length=16.0)
PHI_3 = dataclasses.replace(
    tiny.LLAMA, dim=32, head_dim=8, rope_part=0.5, max_length=32,
    rope_scaling="longrope", rope_original_length=32.0,
    rope_short_factors=(1.0, 1.25), rope_long_factors=(1.5, 8.0),
    rope_factor=2.0, rope_gain=1.25, family="phi3")


def write(folder, config, arch, **options):
  """Writes a random model; returns the file and the parameters."""
  params = tiny.random_model(config).params
  convert.to_hf(folder / "hf", config, params)
  path = folder / "model.gguf"
  gguf_writer.write(path, folder / "hf", arch, **options)
  return path, params


def check_same(actual, expected, **tolerance):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_family_is_read_as_it_was(tmp_path, name):
  path, params = write(tmp_path, CONFIGS[name], ARCHITECTURES[name])
  lm, loaded = checkpoints.load(path)
  # Gemma's norms have been one more, in 32 bits.
  check_same(loaded, params, rtol=0, atol=3e-7 if "gemma" in name else 0)
  assert lm.vocab_size == CONFIGS[name].vocab_size
  ours, theirs = (dataclasses.asdict(checkpoints.architecture(x))
                  for x in (path, tmp_path / "hf"))
  assert {x: (ours[x], theirs[x]) for x in ours if ours[x] != theirs[x]} == {}


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_types_of_matrices(tmp_path, kind):
  config = dataclasses.replace(tiny.LLAMA, dim=32, head_dim=8, hidden_dim=64)
  path, params = write(tmp_path, config, "llama", kind=kind)
  _, loaded = checkpoints.load(path, dtype="float32")
  kind = gguf.GGMLQuantizationType[kind]

  def rounded(x):
    x = np.asarray(x)
    if x.ndim < 2 or x.shape[-1] == 1:
      return x
    return gguf.dequantize(gguf.quantize(x, kind), kind)

  # Rows are rounded by themselves, so that their order makes no difference.
  check_same(loaded, jax.tree.map(rounded, params), rtol=0, atol=0)
  stored = {"F16": "float16", "BF16": "bfloat16"}.get(kind.name, "float32")
  assert checkpoints.architecture(path).dtype == stored
  check_stored(path, ["float32", "bfloat16"], kind.name)
  lm, eight = checkpoints.load(path, weights="int8")
  assert lm.vocab_size == 13
  assert any(x.dtype == np.int8 for x in jax.tree.leaves(eight))


def check_stored(path, dtypes, kind):
  """As they are stored, weights give the same outputs to the bit; so they do
  where a model drafts with its own first layer."""
  prompts = np.arange(6).reshape(2, 3)
  for dtype in dtypes:
    logits, texts = [], []
    for weights in ("dtype", "stored"):
      lm, params = checkpoints.load(path, dtype=dtype, weights=weights)
      logits.append(tiny.causal(tiny.Model(lm, params), prompts)[0])
      config = dataclasses.replace(checkpoints.architecture(path),
                                   dtype=dtype, weights=weights)
      texts.append(dj.generate(
          jax.random.key(0), prompts, np.full(2, 3), target=lm,
          target_params=params, draft=transformer.early_exit(config, 1),
          draft_params=params, method=dj.methods.rsd_s(2, 2),
          max_new_tokens=6).tokens)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, checkpoints.abstract_params(path, config))
    np.testing.assert_array_equal(*logits)
    np.testing.assert_array_equal(*texts)
    groups = [x for x in jax.tree.leaves(params)
              if x.dtype in (np.uint8, np.int8)]
    assert len(groups) == 16 * kind.startswith("Q")
  with pytest.raises(ValueError, match="'stored': layers cannot be scanned"):
    checkpoints.load(path, weights="stored", scan_layers=True)


@pytest.mark.parametrize("part", ["scales", "least"])
def test_groups_of_no_numbers(tmp_path, monkeypatch, part):
  config = dataclasses.replace(tiny.LLAMA, dim=32, head_dim=8, hidden_dim=64)
  path, _ = write(tmp_path, config, "llama", kind="Q4_1")
  groups = blocks.groups

  def damaged(*args):
    result = groups(*args)
    getattr(result, part)[0, 0] = np.inf
    return result

  monkeypatch.setattr(blocks, "groups", damaged)
  with pytest.raises(ValueError, match="embedding"):
    checkpoints.load(path, weights="stored")


def test_a_file_in_pieces_of_packages(tmp_path, monkeypatch):
  path, params = write(tmp_path, tiny.LLAMA, "llama")
  monkeypatch.syspath_prepend(str(tmp_path / "site"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  installed.in_parts(tmp_path / "site", "data/part0{}.bin", path.read_bytes())
  name = "package:part0+part1+part2"
  check_same(checkpoints.load(name)[1], params, rtol=0)
  assert resolve.folder(name).read_bytes() == path.read_bytes()
  with pytest.raises(ValueError, match="damaged"):
    checkpoints.load("package:part0+part1")


def test_wavelengths_of_llama_3(tmp_path):
  """Files have what each wavelength is multiplied by, not how it came about."""
  factors = rope.frequencies(tiny.LLAMA) / rope.frequencies(LLAMA_3)
  assert len(set(factors)) > 1
  path, _ = write(tmp_path, tiny.LLAMA, "llama",
                  rope={"rope_freqs.weight": factors.astype(np.float32)})
  config = checkpoints.architecture(path)
  np.testing.assert_allclose(rope.frequencies(config),
                             rope.frequencies(LLAMA_3), rtol=1e-6)
  assert rope.gain(config) == 1 and config.max_length == LLAMA_3.max_length


def test_scalings_of_wavelengths(tmp_path):
  config = dataclasses.replace(PHI_3, num_layers=1)
  factors = {f"rope_factors_{name}.weight": np.asarray(x, np.float32)
             for name, x in (("short", config.rope_short_factors),
                             ("long", config.rope_long_factors))}
  path, params = write(
      tmp_path, config, "phi3", rope=factors, extra=[
          ("add_rope_dimension_count", 4), ("add_sliding_window", 64),
          ("add_rope_scaling_orig_ctx_len", 32),
          ("add_rope_scaling_attn_factors", config.rope_gain)])
  check_same(checkpoints.load(path)[1], params, rtol=0, atol=0)
  result = checkpoints.architecture(path)
  np.testing.assert_allclose(rope.frequencies(result), rope.frequencies(config),
                             rtol=1e-6)
  assert np.isclose(result.rope_gain, config.rope_gain)
  (tmp_path / "yarn").mkdir()
  path, _ = write(tmp_path / "yarn", tiny.LLAMA, "llama", extra=[
      ("add_rope_scaling_type", gguf.RopeScalingType.YARN),
      ("add_rope_scaling_factor", 4.0), ("add_rope_scaling_orig_ctx_len", 16)])
  result = checkpoints.architecture(path)
  assert result.rope_scaling == "yarn" and result.rope_original_length == 16
  assert result.rope_factor == 4 and result.max_length == 64


def test_a_split_file(tmp_path):
  path, params = write(tmp_path, tiny.LLAMA, "llama", split=6)
  first, second, *rest = sorted(tmp_path.glob("model-*.gguf"))
  assert rest and not path.exists()
  check_same(checkpoints.load(first)[1], params, rtol=0, atol=0)
  with pytest.raises(ValueError, match="is part 2 of 4: the first one is"):
    checkpoints.architecture(second)
  second.unlink()
  first.touch()  # What has been read is read again.
  with pytest.raises(FileNotFoundError, match="model-00002-of-00004.gguf is"):
    checkpoints.load(first)


@pytest.mark.parametrize("extra, error", [
    (("add_uint32", "llama.attention.clamp", 3),
     "llama.attention.clamp=3 is not supported."),
    (("add_uint32", "llama.rope.dimension_count", 2),
     "llama.rope.dimension_count=2 is not supported; 4, all channels, is."),
    (("add_uint32", "llama.pooling_type", 1),
     "llama.pooling_type=1 is not supported; 0 is."),
    (("add_array", "llama.feed_forward_length", [24, 32]),
     r"llama.feed_forward_length=\[24, 32\]: layers that differ"),
    (("add_string", "llama.rope.scaling.type", "ntk"),
     "llama.rope.scaling.type='ntk' is not one of linear, longrope, none"),
    (("add_array", "llama.attention.head_count", ["a", "a"]),
     r"llama.attention.head_count=\['a', 'a'\]: a positive integer"),
    (("add_value_length", 8), "llama.attention.value_length=8: that of keys"),
])
def test_what_is_unknown_is_named(tmp_path, extra, error):
  path, _ = write(tmp_path, tiny.LLAMA, "llama", extra=[extra])
  with pytest.raises(ValueError, match=error):
    checkpoints.architecture(path)


def test_other_architectures_and_tensors_are_named(tmp_path):
  path, _ = write(tmp_path, tiny.LLAMA, "llama", rope={
      "blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
  with pytest.raises(ValueError, match="tensor blk.0.attn_sinks.weight is not"):
    checkpoints.load(path)
  for name, shown in (("mamba", "'mamba'"), (["llama"], r"\['llama'\]")):
    path = tmp_path / "mamba.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    if isinstance(name, list):
      del writer.kv_data[0]["general.architecture"]
      writer.add_array("general.architecture", name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=f"general.architecture={shown} is no"):
      checkpoints.architecture(path)


def test_damaged_files(tmp_path):
  path, _ = write(tmp_path, tiny.LLAMA, "llama")
  whole = path.read_bytes()
  for name, text, error in (
      ("magic", b"GGML" + whole[4:], "does not begin with GGUF"),
      ("version", whole[:4] + b"\0\0\0\3" + whole[8:], "version 50331648 of "),
      ("short", whole[:100], "is damaged: it"),
      ("end", whole[:-64], "it ends at byte"),
      ("count", whole[:16] + b"\xff" * 8 + whole[24:], "is damaged")):
    damaged = tmp_path / f"{name}.gguf"
    damaged.write_bytes(text)
    with pytest.raises(ValueError, match=error):
      checkpoints.architecture(damaged)


def test_a_file_becomes_a_folder(tmp_path):
  path, params = write(tmp_path, CONFIGS["gemma3_text"], "gemma3")
  checkpoints.convert(path, tmp_path / "ours")
  check_same(checkpoints.load(tmp_path / "ours")[1], params, rtol=0, atol=3e-7)
  checkpoints.export(path, tmp_path / "theirs")
  check_same(checkpoints.load(tmp_path / "theirs")[1], params, rtol=0,
             atol=3e-7)


# Transformers reads no width of heads and no cap of Gemma 3.
_AS_PUBLISHED = dataclasses.replace(
    CONFIGS["gemma3_text"], head_dim=256, num_heads=2, num_kv_heads=1,
    logit_softcap=0.0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_logits_are_those_of_transformers(tmp_path, name):
  torch, transformers, _ = (
      pytest.importorskip(x, reason="needs pip install -e '.[parity]'")
      for x in ("torch", "transformers", "accelerate"))
  config = _AS_PUBLISHED if name == "gemma3" else CONFIGS[name]
  path, _ = write(tmp_path, config, name)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
  lm, params = checkpoints.load(path)
  tokens = np.random.default_rng(0).integers(0, lm.vocab_size, (1, 12))
  with torch.no_grad():
    expected = theirs(torch.tensor(tokens)).logits[0].numpy()
  actual = np.asarray(transformer.causal_logits(
      lm, params, jnp.asarray(tokens, jnp.int32)))[0]
  assert np.abs(actual - expected).max() < 1e-4 * np.abs(expected).max()
