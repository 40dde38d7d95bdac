"""Compiles the native CPU kernels, and keeps what was compiled.

`python -m decoding_jax.kernels.cpu.build` takes some thirty seconds once a
machine; otherwise the first `dj.generate` or `kernels.prepare` compiles.
Libraries are kept in `decoding_jax` of `XDG_CACHE_HOME` or `~/.cache`, unless
others may write there. The compiler is `CXX`, or c++.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import jax
import jaxlib

_LOG = logging.getLogger(__name__)
_SOURCES = pathlib.Path(__file__).with_name("src")
# No vector is passed to what others have compiled, which -Wpsabi is about.
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-Wall",
          "-Wextra", "-Wno-psabi")
# Folders of builds begin so; one that is older was killed.
_BUILD, _BUILD_SECONDS = "decoding_jax-build-", 3600
# Letters of a compiler's message that are shown.
_MOST_SAID = 500


class Unavailable(Exception):
  """Why there are no native kernels.

  Attributes:
    is_fault: whether it is something that the user has to mend; else there is
      no compiler, or no place to keep a library.
    is_final: whether it holds for the whole process; else a later call may
      compile.
  """

  def __init__(self, message, is_fault, is_final=True):
    super().__init__(message)
    self.is_fault = is_fault
    self.is_final = is_final


def load(may_compile=True) -> tuple[str, ctypes.CDLL]:
  """Returns the library and the digest of what it depends on. Compiles it first
  if it has not been and `may_compile`; raises `Unavailable`."""
  try:
    compiler = _compiler()
    with _folder() as folder:
      path = _compiled(compiler, folder, may_compile)
      return _digest(compiler), _loaded(path)
  except (OSError, RuntimeError) as error:
    raise Unavailable(str(error), False) from error


def _loaded(path):
  try:
    return ctypes.cdll.LoadLibrary(str(path))
  except OSError as error:
    raise Unavailable(f"'{path}' cannot be loaded: {error}", True) from error


def _compiler() -> list[str]:
  named = os.environ.get("CXX", "").strip()
  try:
    command = shlex.split(named) or ["c++"]
  except ValueError as error:
    raise Unavailable(f"CXX={named!r} is no command: {error}", True) from error
  if shutil.which(command[0]) is None:
    raise Unavailable(f"there is no C++ compiler {command[0]!r}" +
                      (f" (CXX={named!r})" if named else ""), bool(named))
  return command


def _compiled(compiler, folder, may_compile=True) -> pathlib.Path:
  """Returns the library in a folder, compiled unless it is there and whole. Its
  name says what it was made of and what is in it: file systems may lose the end
  of a file, and to load such a one would kill the process."""
  digest = _digest(compiler)
  found = list(folder.glob(f"{digest}-*.so"))
  for path in found:
    if path.stem == f"{digest}-{_contents(path)}":
      return path
  if not may_compile:
    raise Unavailable(
        "native kernels are not compiled, and not while a program is traced: "
        "call decoding_jax.kernels.prepare() before, or run once "
        "python -m decoding_jax.kernels.cpu.build.", True, is_final=False)
  _LOG.warning("Compiling native CPU kernels, once on this machine: about 30 "
               "seconds.")
  _sweep(folder, _BUILD, "tmp")
  with tempfile.TemporaryDirectory(dir=folder, prefix=_BUILD) as build:
    made = pathlib.Path(build) / "made.so"
    ended = _run([*_command(compiler), "-o", str(made)])
    if ended.returncode or not made.is_file():
      said = "".join(x if x.isprintable() else " " for x in ended.stderr)
      raise Unavailable(
          f"{shlex.join(compiler)!r} has compiled nothing, and ended with "
          f"status {ended.returncode}: {' '.join(said.split())[:_MOST_SAID]}",
          True)
    path = folder / f"{digest}-{_contents(made)}.so"
    # At once: other processes may be at it as well.
    made.replace(path)
  for damaged in found:
    if damaged != path:
      damaged.unlink(missing_ok=True)
  return path


def _run(command) -> subprocess.CompletedProcess:
  """Runs a compiler, which may print what is no text, and asks nothing."""
  try:
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace")
  except OSError as error:
    raise Unavailable(f"{command[0]!r} cannot be run: {error.strerror}",
                      True) from error


def _command(compiler) -> list[str]:
  return [*compiler, *_FLAGS, "-isystem", jax.ffi.include_dir(),
          str(_SOURCES / "handlers.cc")]


def _contents(path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()


def _sweep(folder, *prefixes) -> None:
  """Removes what builds have left there that were killed."""
  for path in folder.iterdir():
    with contextlib.suppress(OSError):
      if path.name.startswith(prefixes) and (
          _is_private(path.lstat()) and
          path.lstat().st_mtime < time.time() - _BUILD_SECONDS):
        shutil.rmtree(path)


@contextlib.contextmanager
def _folder():
  """Yields the folder of libraries; with a warning one of this process alone.
  Whoever may write to the folder may have this process run anything."""
  parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  folder = pathlib.Path(parent) / "decoding_jax"
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  if _is_private(folder.stat()):
    yield folder
    return
  _LOG.warning("'%s' is not used, since it belongs to or may be written by "
               "others: each program will compile again.", folder)
  _sweep(pathlib.Path(tempfile.gettempdir()), _BUILD)
  with tempfile.TemporaryDirectory(prefix=_BUILD) as private:
    yield pathlib.Path(private)


def _is_private(status) -> bool:
  """Returns whether a file is this user's, and nobody else may write to it."""
  return not hasattr(os, "getuid") or (
      status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _digest(compiler) -> str:
  """Returns a digest of all that a library depends on. Machines may share the
  folder, and checkouts the library."""
  version = _run([*compiler, "--version"]).stdout
  sources = [(path.name, path.read_text())
             for path in sorted(_SOURCES.glob("*.[ch]*"))]
  parts = (compiler, _FLAGS, version, sources, jaxlib.__version__, _cpu())
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
  """Returns CPU model and instruction-set flags, as far as the OS reports."""
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.exists() else []
  told = {line for line in lines
          if line.lower().startswith(("flags", "features", "model name"))}
  return " ".join([platform.machine(), platform.processor(), *sorted(told)])


def main():
  try:
    digest, library = load()
  except Unavailable as error:
    sys.exit(f"no native kernels: {error}")
  print(f"native kernels {digest}: {library._name}")


if __name__ == "__main__":
  main()
