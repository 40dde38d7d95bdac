"""Imports run downwards: a module imports from lower floors alone.

Drawn from the source, so that an import inside a function counts as well.
"""

import ast
import pathlib
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# From the ground up; a module may not import from its own floor either.
FLOORS = [
    ["types", "options", "bits", "native"],
    ["contracts", "noise", "softmax", "arrays"],
    ["tree", "sampling", "cache", "text", "rewards", "constraints.automata",
     "constraints.spelling", "processors.applied", "processors.automata",
     "processors.penalties"],
    ["beam", "traversal", "constraints.lexical", "constraints.combined",
     "processors.expressions"],
    ["processors.schemas"],
    ["processors.patterns"],
    ["processors", "draft", "verify", "constraints", "prefill", "queue",
     "growth"],
    ["speculation", "rollout"],
    ["candidates", "lookahead", "search"],
    ["gates"],
    ["checks", "metrics", "planning"],
    ["generate"],
    ["methods.*"],
]
# The packages above the library, and what of ours each of them may import.
PACKAGES = {
    "models": {"decoding_jax.types", "decoding_jax.native", "models"},
    "configs": {"configs"},
    "experiments": {"decoding_jax", "models", "experiments"},
}
# They test models and methods, and call the library as its users do.
CHECKS = {"models.conformance", "models.exactness"}
# What the library needs of the world; it knows no flags, files or tokenizers.
LIBRARY_NEEDS = {"flax", "jax", "jaxlib", "numpy"}
# What a single module asks for when it is used, and tells how to install.
OPTIONAL = {("decoding_jax.processors.expressions", "outlines_core")}


def modules(package):
  """Dotted names and sources of a package."""
  for path in sorted((REPOSITORY / package).rglob("*.py")):
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    yield ".".join(parts).removesuffix(".__init__"), path.read_text("utf-8")


def imports(source, known):
  """Dotted names of the modules that a source imports.

  Args:
    source: Python.
    known: names of the modules there are, which tells a module of a package
      from one of its functions.
  """
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, "relative imports are not used here"
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        yield name if name in known else node.module


def floor(name):
  """Floor of a module of the library; None if it has none."""
  name = name.removeprefix("decoding_jax.")
  for height, names in enumerate(FLOORS):
    if name in names or f"{name.split('.')[0]}.*" in names:
      return height
  return None


def faults(name, source, known):
  """What a module of the library imports, but may not."""
  if name == "decoding_jax":  # It lists the public names, from anywhere.
    return [x for x in imports(source, known)
            if not x.startswith("decoding_jax.")]
  found = []
  for other in imports(source, known):
    root = other.split(".")[0]
    if root == "decoding_jax":
      height = floor(other)
      allowed = height is not None and height < floor(name)
    else:
      allowed = root in LIBRARY_NEEDS | sys.stdlib_module_names or (
          name, root) in OPTIONAL
    if not allowed:
      found.append(other)
  return found


LIBRARY = dict(modules("decoding_jax"))


def test_the_library_is_found():
  assert {"decoding_jax", "decoding_jax.types", "decoding_jax.generate",
          "decoding_jax.methods", "decoding_jax.methods.rsd_s"} <= set(LIBRARY)


@pytest.mark.parametrize("name", LIBRARY)
def test_every_module_has_a_floor(name):
  assert name == "decoding_jax" or floor(name) is not None


@pytest.mark.parametrize("name", LIBRARY)
def test_imports_run_downwards(name):
  assert not faults(name, LIBRARY[name], set(LIBRARY))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_above_the_library(package):
  ours = {"decoding_jax", *PACKAGES}
  known = {name for each in ours for name, _ in modules(each)}
  for name, source in modules(package):
    allowed = PACKAGES[package] | ({"decoding_jax"} if name in CHECKS
                                   else set())
    for other in imports(source, known):
      above = {other, other.split(".")[0]}
      assert other.split(".")[0] not in ours or above & allowed, (
          f"{name} imports {other}")


def test_no_model_needs_a_check():
  """Models import the types of the library alone, by way of others too."""
  known = {name for name, _ in modules("models")}
  for name, source in modules("models"):
    assert name in CHECKS or not CHECKS & set(imports(source, known))


@pytest.mark.parametrize("name, source, fault", [
    ("tree", "from decoding_jax import draft", "decoding_jax.draft"),
    ("cache", "from decoding_jax.verify import pair", "decoding_jax.verify"),
    ("beam", "import decoding_jax.beam", "decoding_jax.beam"),
    ("draft", "from decoding_jax import verify", "decoding_jax.verify"),
    ("verify", "def f():\n  import decoding_jax as dj", "decoding_jax"),
    ("generate", "from decoding_jax.methods import rsd_s",
     "decoding_jax.methods.rsd_s"),
    ("methods.rsd_c", "from decoding_jax.methods import rsd_s",
     "decoding_jax.methods.rsd_s"),
    ("generate", "from models import transformer", "models"),
    ("methods.rsd_c", "from experiments import train", "experiments"),
    ("generate", "import absl.flags", "absl.flags"),
    ("sampling", "from tokenizers import Tokenizer", "tokenizers"),
])
def test_control_wrong_imports_are_seen(name, source, fault):
  found = faults(f"decoding_jax.{name}", source, set(LIBRARY))
  assert found == [fault]


@pytest.mark.parametrize("name, source", [
    ("draft", "from decoding_jax import beam, tree as tree_lib"),
    ("methods.rsd_c", "from decoding_jax.types import Method"),
    ("generate", "import functools\nimport jax.numpy as jnp"),
])
def test_control_right_imports_are_not(name, source):
  assert not faults(f"decoding_jax.{name}", source, set(LIBRARY))


def test_control_a_new_module_has_no_floor():
  assert floor("decoding_jax.utils") is None
  assert floor("decoding_jax.methods.new") == len(FLOORS) - 1
