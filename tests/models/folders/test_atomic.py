"""Folders that appear whole or not at all, and one writer at a time."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from models.folders import atomic

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
_WRITER = """
import sys
from models.folders import atomic
with atomic.replacing(sys.argv[1]) as partial:
  (partial / "a").write_text("theirs")
  print("writing", flush=True)
  sys.stdin.read()
"""


@pytest.fixture(name="writer")
def _writer(tmp_path):
  """A process that is writing a folder until its input ends."""
  with subprocess.Popen(
      [sys.executable, "-c", _WRITER, tmp_path / "out"], text=True,
      env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
      stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == "writing\n"
    yield process
    process.kill()


def _write(folder):
  with atomic.replacing(folder) as partial:
    (partial / "a").write_text("ours")


def test_a_second_writer_is_refused(tmp_path, writer):
  with pytest.raises(ValueError, match="out' is being written by another proc"):
    _write(tmp_path / "out")
  _write(tmp_path / "another")
  writer.communicate()
  assert writer.returncode == 0
  assert (tmp_path / "out" / "a").read_text() == "theirs"
  assert sorted(x.name for x in tmp_path.iterdir()) == ["another", "out"]


def test_a_writer_that_died_blocks_nobody(tmp_path, writer):
  writer.send_signal(signal.SIGKILL)
  writer.wait()
  assert (tmp_path / ".out.lock").exists()
  _write(tmp_path / "out")
  assert (tmp_path / "out" / "a").read_text() == "ours"
  assert [x.name for x in tmp_path.iterdir()] == ["out"]


def test_a_lock_ends_with_an_error(tmp_path):
  with pytest.raises(RuntimeError):
    with atomic.replacing(tmp_path / "out"):
      with pytest.raises(ValueError, match="is being written"):
        _write(tmp_path / "out")
      raise RuntimeError
  assert not list(tmp_path.iterdir())
  _write(tmp_path / "out")


def test_a_lock_file_that_was_removed_is_made_anew(tmp_path, monkeypatch):
  path, opened = tmp_path / "lock", []

  def flock(file, how):
    del how
    opened.append(file)
    if len(opened) == 1:
      path.unlink()

  monkeypatch.setattr(atomic.fcntl, "flock", flock)
  with atomic._locked_file(path) as file:
    assert len(opened) == 2 and file is opened[1] and opened[0].closed


def test_where_nothing_can_be_written(tmp_path):
  """The error names the folder that was asked for, and no lock."""
  (tmp_path / "file").touch()
  for name in ("file/out", "file/more/out"):
    with pytest.raises(NotADirectoryError) as e:
      _write(tmp_path / name)
    assert e.value.filename == str(tmp_path.resolve() / name)
