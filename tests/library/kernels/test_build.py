"""Native kernels: what is compiled, and kept."""

import hashlib
import os
import shutil
import subprocess
import tempfile

import pytest

from decoding_jax.kernels.cpu import bindings, build
from support import helpers

pytestmark = pytest.mark.skipif(
    not bindings.available(), reason="no C++ compiler, or no CPU")


@pytest.fixture
def no_library(monkeypatch):
  """None has been looked for yet."""
  monkeypatch.setattr(bindings, "_found", {})


@pytest.fixture(name="fast")
def _fast(monkeypatch, tmp_path):
  """The folder of libraries, empty; their compiler writes how often it ran."""
  script = tmp_path / "compiler"
  script.write_text(
      "#!/bin/sh\n"
      f"if [ $1 = --version ]; then cat {tmp_path}/version; exit; fi\n"
      f"echo >> {tmp_path}/runs\n"
      "while [ $# -gt 1 ]; do shift; done\n"
      f"cat {tmp_path}/runs > $1\n")
  script.chmod(0o700)
  (tmp_path / "version").write_text("1.0")
  (tmp_path / "runs").touch()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setenv("CXX", str(script))
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
  (tmp_path / "temporary").mkdir()
  return tmp_path / "cache" / "decoding_jax"


def _build():
  """The path of the library, made or found."""
  with build._folder() as folder:
    return build._compiled(build._compiler(), folder)


def _runs(fast):
  return len((fast.parents[1] / "runs").read_text())


def test_it_is_compiled_once_into_a_private_folder(fast):
  before = os.umask(0)
  try:
    library = _build()
  finally:
    os.umask(before)
  assert fast.stat().st_mode & 0o777 == 0o700
  assert list(fast.iterdir()) == [library]
  assert _build() == library and _runs(fast) == 1


@pytest.mark.parametrize("content", [b"", b"\n\n\n\nforeign", None])
def test_a_damaged_library_is_made_anew(fast, content):
  """One that was cut off, to nothing at all, and one of something else."""
  library = _build()
  library.write_bytes(library.read_bytes()[:-1] if content is None else content)
  whole = _build()
  assert list(fast.iterdir()) == [whole] and _runs(fast) == 2
  assert whole.stem.endswith(hashlib.sha256(whole.read_bytes()).hexdigest())


def test_a_library_that_is_cut_off_kills_nobody(monkeypatch, tmp_path):
  """The real one, in a process of its own, which it would end by SIGBUS."""
  with build._folder() as folder:
    [library] = [path for path in folder.glob("*.so") if path.stem == (
        f"{bindings._library()}-{build._contents(path)}")]
  cache = tmp_path / "decoding_jax"
  cache.mkdir(mode=0o700)
  damaged = cache / library.name
  damaged.write_bytes(library.read_bytes()[:-5000])
  # What would make it anew makes the same.
  code = (
      "import pathlib\n"
      "from decoding_jax.kernels.cpu import bindings, build\n"
      "make = build.subprocess.run\n"
      "def run(command, **kwargs):\n"
      "  if '-o' not in command: return make(command, **kwargs)\n"
      f"  whole = pathlib.Path({str(library)!r}).read_bytes()\n"
      "  pathlib.Path(command[-1]).write_bytes(whole)\n"
      "  return make(['true'])\n"
      "build.subprocess.run = run\n"
      "print(bindings.available())\n")
  process = helpers.start("-c", code, XDG_CACHE_HOME=str(tmp_path))
  output, errors = process.communicate(timeout=60)
  assert process.returncode == 0, errors
  assert output == "True\n"
  assert damaged.read_bytes() == library.read_bytes()


def test_what_no_system_can_load_is_one_line(fast, no_library, caplog):
  assert not bindings.available()
  assert "cannot be loaded" in caplog.messages[-1]
  assert len(caplog.messages[-1].splitlines()) == 1
  assert len(list(fast.iterdir())) == 1


@pytest.mark.parametrize("reason", ["open", "others"])
def test_a_folder_of_others_is_not_used(fast, monkeypatch, caplog, reason):
  fast.mkdir(parents=True)
  if reason == "open":
    fast.chmod(0o775)
  else:
    monkeypatch.setattr(os, "getuid", lambda: fast.stat().st_uid + 1)
  with build._folder() as folder:
    library = build._compiled(build._compiler(), folder)
    assert library.parent.parent == fast.parents[1] / "temporary"
  assert "each program will compile again" in caplog.messages[0]
  assert not library.parent.exists() and not list(fast.iterdir())


def test_what_killed_builds_leave_is_removed(fast):
  others, old, new = (fast / name for name in (
      "mine", f"{build._BUILD}old", f"{build._BUILD}new"))
  for folder in (others, old, new):
    folder.mkdir(mode=0o700, parents=True)
    (folder / "made.so").touch()
  for folder in (others, old):
    os.utime(folder, (0, 0))
  library = _build()
  assert {*fast.iterdir()} == {others, new, library}


@pytest.mark.parametrize("compiler", ["'c++", 'c++ -DX="', "c++ \\"])
def test_a_malformed_compiler_is_one_line(compiler, fast, no_library,
                                          monkeypatch, caplog):
  monkeypatch.setenv("CXX", compiler)
  assert not bindings.available()
  assert "CXX=" in caplog.text and "is no command" in caplog.text
  assert len(caplog.messages) == len(caplog.messages[0].splitlines()) == 1
  assert not fast.exists()


@pytest.mark.parametrize("script, message", [
    ("#!/bin/sh\nprintf '\\377\\033[31m\\007two\\nlines' >&2; exit 3",
     "has compiled nothing, and ended with status 3: \ufffd [31m two lines"),
    ("#!/bin/sh\n", "has compiled nothing, and ended with status 0"),
    ("\0", "cannot be run: Exec format error"),
    (None, "there is no C++ compiler")],
                         ids=["bytes", "nothing", "no program", "none"])
def test_a_compiler_that_is_none_is_one_printable_line(
    script, message, fast, no_library, monkeypatch, caplog):
  other = fast.parents[1] / "other"
  if script is not None:
    other.write_text(script)
    other.chmod(0o700)
  monkeypatch.setenv("CXX", str(other))
  assert not bindings.available()
  assert not bindings.available()
  *before, told = caplog.messages
  assert before in ([], [
      "Compiling native CPU kernels, once on this machine: about 30 seconds."])
  assert message in told and str(other) in told and told.isprintable()


def test_what_holds_for_the_process_is_told_once(no_library, monkeypatch,
                                                 caplog):
  monkeypatch.setenv("CXX", '"')
  for is_tracing in True, False:
    monkeypatch.setattr(bindings, "is_tracing", lambda: is_tracing)
    assert not bindings.available()
  assert len(caplog.messages) == 1


def test_an_empty_compiler_is_that_of_the_system(monkeypatch):
  monkeypatch.setenv("CXX", " ")
  assert build._compiler() == ["c++"]


def test_libraries_depend_on_contents(fast, monkeypatch, tmp_path):
  """On what is in sources, wherever they are, and on what compiles them."""
  digest = lambda: build._digest(build._compiler())
  before = digest()
  copy = tmp_path / "checkout"
  shutil.copytree(build._SOURCES, copy)
  monkeypatch.setattr(build, "_SOURCES", copy)
  assert digest() == before
  (fast.parents[1] / "version").write_text("1.1")
  newer = digest()
  monkeypatch.setattr(build, "_FLAGS", ("-O0", *build._FLAGS[1:]))
  slower = digest()
  with open(copy / "thread_team.h", "a") as f:
    f.write("\n")
  changed = digest()
  monkeypatch.setattr(build, "_cpu", lambda: "another one")
  assert len({before, newer, slower, changed, digest()}) == 5


@pytest.mark.long
def test_the_compiler_warns_of_nothing(tmp_path):
  command = build._command(build._compiler())
  made = subprocess.run(
      [*command, "-O1", "-o", str(tmp_path / "made.so")], check=True,
      capture_output=True, text=True)
  assert not made.stderr


def test_the_program_compiles_them():
  process = helpers.start("-m", "decoding_jax.kernels.cpu.build")
  output, errors = process.communicate(timeout=120)
  assert process.returncode == 0, errors
  assert output.startswith(f"native kernels {bindings._library()}: ")
  assert "RuntimeWarning" not in errors


def test_the_program_says_why_there_are_none(monkeypatch, capsys):
  monkeypatch.setenv("CXX", "no-such-compiler")
  with pytest.raises(SystemExit, match="no native kernels: there is no C"):
    build.main()
