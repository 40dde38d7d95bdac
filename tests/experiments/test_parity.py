"""The comparison of a published model with transformers."""

import json

import jax
import pytest

from experiments import parity
from experiments.app import launch
from models import checkpoints
from models.text import chat_template, tokenizers
from support import gguf_writer

pytest.importorskip("torch", reason="needs pip install -e '.[parity]'")
pytest.importorskip("transformers", reason="needs pip install -e '.[parity]'")

pytestmark = pytest.mark.long

WHAT = ["tokens", "distributions of 64 tokens", "greedy text of 32 tokens",
        "chat template"]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
  """The shipped draft as transformers has it, with a chat template."""
  folder = tmp_path_factory.mktemp("parity") / "draft"
  checkpoints.export(launch.model_folder("python-draft"), folder)
  (folder / chat_template.FILE).write_text(
      "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% endfor %}")
  return folder


def test_the_shipped_draft_is_the_same_model_there(folder):
  result = parity.findings(folder, 64)
  assert [x.what for x in result] == WHAT
  assert all(x.right for x in result), result
  assert result[0].result == "the same of 11 of 11 texts"


def test_a_gguf_file_is_read_by_both(folder, tmp_path):
  pytest.importorskip("accelerate", reason="needs pip install -e '.[parity]'")
  spec = json.loads((folder / tokenizers.FILE).read_text())["model"]
  gguf_writer.write(tmp_path / "draft.gguf", folder, "llama", extra=[
      ("add_tokenizer_model", "gpt2"), ("add_tokenizer_pre", "gpt-2"),
      ("add_token_list", sorted(spec["vocab"], key=spec["vocab"].get)),
      ("add_token_merges", [" ".join(pair) for pair in spec["merges"]])])
  result = parity.findings(tmp_path / "draft.gguf", 64)
  assert [x.what for x in result] == WHAT[:3]
  assert all(x.right for x in result), result


def test_another_model_is_found_out(folder, monkeypatch):
  lm, params = checkpoints.load(folder, dtype="float32")
  off = jax.tree_util.tree_map_with_path(
      lambda path, x: 2 * x if "value" in str(path) else x, params)
  monkeypatch.setattr(checkpoints, "load", lambda *_, **__: (lm, off))
  monkeypatch.setattr(chat_template, "load", lambda _: str)
  other = tokenizers.train(["spam spam eggs"] * 2, 270)
  monkeypatch.setattr(tokenizers, "load", lambda _: other)
  result = parity.findings(folder, 64)
  assert [x.what for x in result] == WHAT
  assert not any(x.right for x in result), result


def test_what_cannot_be_compared(folder, monkeypatch):
  with pytest.raises(launch.UserError, match="--tokens=16: at least 17 are"):
    parity.findings(folder, 16)
  with pytest.raises(launch.UserError, match="as transformers writes it is"):
    parity.findings(launch.model_folder("python-draft"), 64)
  monkeypatch.setattr(parity.engines, "missing", lambda _: ["torch"])
  with pytest.raises(launch.UserError, match="torch is not installed: pip in"):
    parity.findings(folder, 64)
