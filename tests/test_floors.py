"""Imports run downwards, by folder, and each folder has a budget of lines.

A file belongs to its folder's floor, so that a new file needs no entry here.
Files of one folder may import each other, in no circle. Imports are read from
the source, so that an import inside a function counts as well.
"""

import ast
import pathlib
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# From the ground up. Names are folders, or modules that are in no folder; those
# of one floor do not import each other.
LIBRARY = [
    ("types", "kernels", "lazy", "token_text"),
    ("validation", "programs"),
    ("sampling", "rewards"),
    ("grammars", "runtime", "beam"),
    ("processors", "canvas"),
    ("speculation",),
    ("search", "argument_checks", "metrics"),
    ("loop",),
    ("generate", "methods", "drawing"),
    ("grammar_aligned", "roles"),
    ("approximately_aligned", "draft_conditioned", "testing"),
]
MODELS = [
    ("transformer", "folders", "tabular", "cacheless"),
    ("gguf",),
    ("text", "prompt_lookup", "guided", "heads", "llm_to_slm"),
    ("huggingface",),
    ("checkpoints",),
]
PROGRAMS = ("__main__", "benchmark", "cdsl", "complete", "convert",
            "device_check", "diffusion", "estimate", "exactness", "generate",
            "grammar", "parity", "rsd", "train")
EXPERIMENTS = [
    ("app",),
    ("devices", "scoring"),
    ("data", "timing", "rivals"),
    ("flags", "training", "harness"),
    ("evaluation",),
    ("benchmarking",),
    PROGRAMS,
]
FLOORS = {"decoding_jax": LIBRARY, "models": MODELS, "experiments": EXPERIMENTS}
# What of ours, beside itself, a package may import.
BELOW = {
    "decoding_jax": (),
    # Heads commit what they read to caches of their own.
    "models": ("decoding_jax.types", "decoding_jax.kernels",
               "decoding_jax.token_text", "decoding_jax.runtime.cache"),
    "configs": (),
    "experiments": ("decoding_jax", "models"),
}
# What the library needs of the world; it knows no flags, files or tokenizers.
LIBRARY_NEEDS = {"flax", "jax", "jaxlib", "numpy"}
# What a single module asks for when it is used, and tells how to install.
OPTIONAL = {
    ("decoding_jax.grammars.engines.llguidance_engine", "llguidance"),
    ("decoding_jax.grammars.engines.xgrammar_engine", "xgrammar")}

# Lines of Python and C++ that a folder may have; who adds, removes. A folder
# that shrinks gives its budget back.
BUDGETS = {
    "configs": 1386,
    "decoding_jax": 2876,
    "decoding_jax/canvas": 1065,
    "decoding_jax/grammars": 4305,
    "decoding_jax/kernels": 4372,
    "decoding_jax/methods": 2514,
    "decoding_jax/processors": 749,
    "decoding_jax/rewards": 981,
    "decoding_jax/runtime": 1112,
    "decoding_jax/search": 2571,
    "decoding_jax/speculation": 5016,
    "decoding_jax/testing": 1664,
    "decoding_jax/types": 771,
    "decoding_jax/validation": 611,
    "experiments": 2230,
    "experiments/app": 1412,
    "experiments/benchmarking": 675,
    "experiments/data": 1834,
    "experiments/devices": 2506,
    "experiments/evaluation": 1140,
    "experiments/flags": 1146,
    "experiments/harness": 739,
    "experiments/rivals": 1379,
    "experiments/scoring": 317,
    "experiments/timing": 657,
    "experiments/training": 1662,
    "models": 603,
    "models/checkpoints": 621,
    "models/folders": 475,
    "models/gguf": 881,
    "models/heads": 3171,
    "models/huggingface": 3326,
    "models/text": 1594,
    "models/transformer": 2960,
}


def modules(package):
  """Yields dotted names and sources of a package."""
  for path in sorted((REPOSITORY / package).rglob("*.py")):
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    yield ".".join(parts), path.read_text("utf-8")


KNOWN = {name: source for package in BELOW for name, source in modules(package)}
NAMES = {name.removesuffix(".__init__") for name in KNOWN}


def imports(source):
  """Yields dotted names of the modules that a source imports."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, "relative imports are not used here"
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        yield name if name in NAMES else node.module


def height(name):
  """Returns the floor of a module in its package; None if it has none."""
  package, room = (name.split(".") + [""])[:2]
  for number, rooms in enumerate(FLOORS[package]):
    if room in rooms:
      return number
  return None


def is_below(name, other):
  """Tells whether a module of a package may import another one of it."""
  package, room, other_room = (
      name.split(".")[0], name.split(".")[1], (other.split(".") + [""])[1])
  if room == "__init__":  # A package lists its public names, from anywhere.
    return True
  if room == other_room:
    return package != "experiments" or room not in PROGRAMS
  here, there = height(name), height(other)
  return None not in (here, there) and there < here


def is_allowed(name, other):
  """Tells whether one module may import another."""
  package, root = name.split(".")[0], other.split(".")[0]
  if root == package:
    return package not in FLOORS or is_below(name, other)
  if root in BELOW:
    return any(f"{other}.".startswith(f"{allowed}.")
               for allowed in BELOW[package])
  return package != "decoding_jax" or (
      root in LIBRARY_NEEDS | sys.stdlib_module_names
      or (name, root) in OPTIONAL)


def faults(name, source):
  """Returns what a module imports, but may not."""
  return [other for other in imports(source) if not is_allowed(name, other)]


def test_imports_run_downwards_and_every_file_has_a_floor():
  wrong = {name: names for name, source in KNOWN.items()
           if (names := faults(name, source))}
  assert not wrong
  assert not [name for name in KNOWN if name.partition(".")[0] in FLOORS
              and not name.endswith("__init__") and height(name) is None]


def test_no_circle_in_a_folder():
  left = {name.removesuffix(".__init__"):
          {x for x in imports(source) if x in NAMES} - {name}
          for name, source in KNOWN.items() if not name.endswith("__init__")}
  while left:
    free = [name for name, needs in left.items() if not needs & left.keys()]
    assert free, f"a circle among {sorted(left)}"
    for name in free:
      del left[name]


@pytest.mark.parametrize("name, source, fault", [
    ("decoding_jax.speculation.tree", "from decoding_jax import generate",
     "decoding_jax.generate"),
    ("decoding_jax.runtime.cache",
     "from decoding_jax.speculation.verifiers import pair",
     "decoding_jax.speculation.verifiers"),
    ("decoding_jax.search.beam",
     "def f():\n  import decoding_jax as dj", "decoding_jax"),
    ("decoding_jax.rewards.new", "from decoding_jax import sampling",
     "decoding_jax.sampling"),
    ("decoding_jax.generate", "from decoding_jax.methods import rsd_s",
     "decoding_jax.methods.rsd_s"),
    ("decoding_jax.generate", "from models import transformer",
     "models.transformer"),
    ("decoding_jax.methods.rsd_c", "import absl.flags", "absl.flags"),
    ("decoding_jax.sampling", "from tokenizers import Tokenizer", "tokenizers"),
    ("models.transformer.new", "from decoding_jax import sampling",
     "decoding_jax.sampling"),
    ("models.transformer.new", "from models.checkpoints import load_save",
     "models.checkpoints.load_save"),
    ("models.tabular", "from experiments.app import launch",
     "experiments.app.launch"),
    ("experiments.app.new", "from experiments.data import records",
     "experiments.data.records"),
    ("experiments.rsd", "from experiments import generate",
     "experiments.generate"),
    ("configs.rsd", "import models", "models"),
])
def test_control_wrong_imports_are_seen(name, source, fault):
  assert faults(name, source) == [fault]


@pytest.mark.parametrize("name, source", [
    ("decoding_jax.search.new",
     "from decoding_jax.speculation import tree_decoder"),
    ("decoding_jax.speculation.new",
     "from decoding_jax.speculation import tree"),
    ("decoding_jax.methods.new", "from decoding_jax.types import Method"),
    ("decoding_jax.generate", "import functools\nimport jax.numpy as jnp"),
    ("models.new.new", "from decoding_jax.kernels import random"),
    ("experiments.rsd", "from experiments.app import launch"),
])
def test_control_right_imports_are_not(name, source):
  assert not faults(name, source)


def test_control_a_new_folder_has_no_floor():
  assert height("decoding_jax.utils.new") is None
  assert height("decoding_jax.methods.new") == len(LIBRARY) - 3


def sizes():
  """Returns folders, and packages for files beside them, with their lines."""
  lines = {}
  for package in BELOW:
    for path in sorted((REPOSITORY / package).rglob("*")):
      if path.suffix in (".py", ".cc", ".h"):
        parts = path.relative_to(REPOSITORY).parts[:-1][:2]
        folder = "/".join(parts)
        text = path.read_text("utf-8")
        lines[folder] = lines.get(folder, 0) + text.count("\n")
  return lines


def test_folders_keep_their_budgets():
  """A feature pays for itself: what is above its budget removes first."""
  lines = sizes()
  assert lines.keys() == BUDGETS.keys(), "a new folder needs a budget"
  above = {folder: f"{count} lines, of {BUDGETS[folder]}"
           for folder, count in lines.items() if count > BUDGETS[folder]}
  assert not above


def test_each_program_is_named_in_a_guide():
  guide = "".join(path.read_text("utf-8") for path in (
      REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")))
  programs = [name for name in PROGRAMS if name != "__main__"]
  assert len(programs) <= 13
  assert not [x for x in programs if f"experiments.{x}" not in guide]
