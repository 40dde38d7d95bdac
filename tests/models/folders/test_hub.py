"""Models of the Hugging Face hub; a server on this machine is the hub."""

import functools
import hashlib
import http.server
import json
import threading
import urllib.parse

import huggingface_hub
import jax
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import drafts
from models import checkpoints
from models.folders import hub
from models.huggingface import convert
from models.text import tokenizers
from support import tiny_models as tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"model_type": "llama"}'
REPOSITORIES = {
    "owner/both": {"config.json": CONFIG, "tokenizer.json": b"{}",
                   "model.safetensors": b"new", "pytorch_model.bin": b"old",
                   "onnx/model.safetensors": b"copy", "README.md": b"# Both"},
    "owner/medusa": {"config.json": b'{"medusa_num_heads": 3}',
                     "medusa_lm_head.pt": b"heads", "training.bin": b"other"},
    "owner/old": {"config.json": CONFIG, "merges.txt": b"a b",
                  "pytorch_model-1-of-1.bin": b"old", "tf_model.h5": b"other"}}


class _Hub(http.server.BaseHTTPRequestHandler):
  """As much of the hub's interface as a download asks for."""

  def do_GET(self):
    parts = urllib.parse.urlsplit(self.path).path.strip("/").split("/")
    api = parts[:2] == ["api", "models"]
    parts = parts[2:] if api else parts
    repo, rest = "/".join(parts[:2]), parts[2:]
    files = REPOSITORIES.get(repo)
    if files is None or rest[1] not in ("main", COMMIT):
      self._answer(404, b"", {"X-Error-Code": "RepoNotFound" if files is None
                              else "RevisionNotFound"})
    elif api:
      self.server.asked.append(rest[0])
      self._answer(200, json.dumps(
          _tree(files) if rest[0] == "tree" else
          {"id": repo, "sha": COMMIT,
           "siblings": [{"rfilename": name} for name in files]}).encode())
    else:
      name = "/".join(rest[2:])
      self.server.asked.append(name)
      self._answer(200, files[name], {"X-Repo-Commit": COMMIT,
                                      "ETag": f'"{_digest(files[name])}"'})

  do_HEAD = do_GET

  def log_message(self, *_):
    pass

  def _answer(self, status, body, headers=()):
    self.send_response(status)
    for name, value in {"Content-Type": "application/json",
                        "Content-Length": len(body), **dict(headers)}.items():
      self.send_header(name, str(value))
    self.end_headers()
    if self.command == "GET":
      self.wfile.write(body)


def _tree(files):
  return [{"type": "file", "path": name, "size": len(content),
           "oid": _digest(content)} for name, content in files.items()]


def _digest(content):
  return hashlib.sha1(content).hexdigest()


@pytest.fixture(name="server")
def _server(monkeypatch, tmp_path):
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
  server.asked = []
  threading.Thread(target=server.serve_forever, daemon=True).start()
  fetch = functools.partial(
      huggingface_hub.snapshot_download, cache_dir=tmp_path, token=False,
      endpoint=f"http://127.0.0.1:{server.server_port}")
  monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
  hub.folder.cache_clear()
  yield server
  server.shutdown()
  server.server_close()
  hub.folder.cache_clear()


def test_a_model_comes_without_what_nobody_reads(server):
  folder = launch.model_folder("hub:owner/both")
  assert sorted(path.name for path in folder.iterdir()) == [
      "config.json", "model.safetensors", "tokenizer.json"]
  assert (folder / "model.safetensors").read_bytes() == b"new"
  asked = list(server.asked)
  assert launch.model_folder("hub:owner/both") == folder
  assert server.asked == asked


@pytest.mark.parametrize("name, files", [
    (f"owner/old@{COMMIT}",
     ["config.json", "merges.txt", "pytorch_model-1-of-1.bin"]),
    ("owner/medusa", ["config.json", "medusa_lm_head.pt"])])
def test_weights_of_torch_if_there_are_no_others_and_heads(server, name, files):
  del server
  folder = hub.folder(f"hub:{name}")
  assert sorted(path.name for path in folder.iterdir()) == files


def test_what_was_downloaded_is_enough(server):
  folder = hub.folder("hub:owner/both")
  server.shutdown()
  server.server_close()
  hub.folder.cache_clear()
  assert hub.folder("hub:owner/both") == folder


@pytest.mark.parametrize("name", [
    "hub:owner/none", "hub:owner/both@none", "hub:a/b/c", "hub:"])
def test_what_cannot_be_had_is_told_in_one_line(server, name):
  del server
  with pytest.raises(launch.UserError,
                     match=f"'{name}' cannot be had from the Hugging Face hub"
                     ) as error:
    launch.model_folder(name)
  assert len(str(error.value).splitlines()) == 1


def test_a_missing_target_is_reported_before_a_drafter(server):
  """Nothing large is downloaded for that."""
  rsd_s = [dj.methods.rsd_s(2, 2)]
  for name, message in (("none", "'hub:owner/none' cannot be had from .*Repo"),
                        ("both", "rsd_s drafts, and no drafter comes with")):
    with pytest.raises(launch.UserError, match=message):
      drafts.parse("").for_methods("rsd_s", rsd_s, f"hub:owner/{name}")
  assert "model.safetensors" not in server.asked


def test_names_will_do_in_python(server, monkeypatch, tmp_path):
  del server
  folder = tmp_path / "hf"
  params = tiny.random_model(tiny.LLAMA).params
  convert.to_hf(folder, tiny.LLAMA, params)
  tokenizer = tokenizers.train(["to be or not"], 260)
  tokenizers.save(tokenizer, folder)
  monkeypatch.setitem(REPOSITORIES, "owner/tiny", {
      path.name: path.read_bytes() for path in folder.iterdir()})
  name = "hub:owner/tiny"
  assert checkpoints.architecture(name) == checkpoints.architecture(folder)
  lm, loaded = checkpoints.load(name, scan_layers=tiny.LLAMA.scan_layers)
  assert lm.vocab_size == tiny.LLAMA.vocab_size
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  assert tokenizers.load(name).to_str() == tokenizer.to_str()
  assert tokenizers.eos_ids(tokenizer, name) == tokenizers.eos_ids(
      tokenizer, folder)


@pytest.mark.parametrize("read", [
    checkpoints.load, checkpoints.architecture, tokenizers.load])
def test_names_that_are_none_in_python(server, read):
  del server
  with pytest.raises(ValueError, match="'hub:owner/none' cannot be had"):
    read("hub:owner/none")
  with pytest.raises(FileNotFoundError, match="neither a folder nor one of the "
                     "shipped .*python-target.* hub is hub:owner/name"):
    read("python-tagret")


def test_a_name_that_may_be_meant_for_the_hub():
  with pytest.raises(launch.UserError, match="Hugging Face hub is hub:owner/"):
    launch.model_folder("owner/both")
