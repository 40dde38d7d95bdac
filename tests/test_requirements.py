"""What is imported is what `setup.cfg` installs."""

import ast
import configparser
import pathlib
import re
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "decoding_jax", "experiments", "models")
# Modules whose distributions have other names.
DISTRIBUTIONS = {"PIL": "pillow", "absl": "absl-py", "jaxlib": "jax",
                 "orbax": "orbax-checkpoint"}
# Imported within functions alone, which tell what to install: their modules may
# need what only an extra brings. Servers run in environments of other tools.
OPTIONAL = {"models/text/template_sandbox.py": "jinja2"}
SERVERS = "experiments/rivals/*_server.py"


def parsed(*folders):
  """Returns a dict from paths in the repository to syntax trees."""
  return {path.relative_to(REPOSITORY).as_posix(): ast.parse(
      path.read_text("utf-8")) for folder in folders
          for path in sorted((REPOSITORY / folder).rglob("*.py"))}


TREES = parsed(*PACKAGES)


def statements(node):
  """Yields the nodes that run when a module is imported."""
  for child in ast.iter_child_nodes(node):
    if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef,
                              ast.Lambda)):
      yield child
      yield from statements(child)


def imported(nodes):
  """Returns dotted names that nodes import, of modules or what is in them."""
  results = set()
  for node in nodes:
    if isinstance(node, ast.Import):
      results |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      results |= {f"{node.module}.{alias.name}" for alias in node.names}
  return results


def distributions(names, ours=PACKAGES):
  """Returns the distributions of dotted names, in the spelling of `normal`."""
  roots = {name.partition(".")[0] for name in names}
  return {normal(DISTRIBUTIONS.get(root, root)) for root in roots
          if root not in sys.stdlib_module_names and root not in ours}


def normal(name):
  return name.lower().replace("_", "-")


def required(*extras):
  """Returns what an installation with extras brings by its own list."""
  config = configparser.ConfigParser()
  config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
  lists = [config["options"]["install_requires"],
           *(config["options.extras_require"][extra] for extra in extras)]
  return {normal(re.match(r"[\w.-]+", line)[0])
          for line in "\n".join(lists).split("\n") if line}


def test_packages_import_what_is_installed():
  servers = {path.relative_to(REPOSITORY).as_posix()
             for path in REPOSITORY.glob(SERVERS)}
  missing = {}
  for path, tree in TREES.items():
    result = distributions(imported(statements(tree))) - required()
    if path not in servers and result - {OPTIONAL.get(path)}:
      missing[path] = result
  assert not missing


def test_tests_import_what_the_extra_installs():
  """Others stand in functions, or are asked for by `pytest.importorskip`."""
  ours = (*PACKAGES, *(x.stem for x in (REPOSITORY / "tests").iterdir()))
  missing = {path: result for path, tree in parsed("tests").items()
             if (result := distributions(imported(statements(tree)), ours)
                 - required("test"))}
  assert not missing


def test_optional_modules_are_imported_where_they_are_used():
  names = {path.removesuffix(".py").replace("/", ".") for path in OPTIONAL}
  for path, tree in TREES.items():
    assert not names & imported(statements(tree)), path
  for path, needed in OPTIONAL.items():
    assert needed in distributions(imported(statements(TREES[path])))


def test_all_that_is_installed_is_imported():
  used = set().union(*(distributions(imported(ast.walk(tree)))
                       for tree in TREES.values()))
  assert required() <= used


@pytest.mark.parametrize("source, names", [
    ("import os, numpy as np\nfrom PIL import Image", {"numpy", "pillow"}),
    ("try:\n  import torch.nn\nexcept ImportError:\n  pass", {"torch"}),
    ("class A:\n  from rouge_score import x", {"rouge-score"}),
    ("def f():\n  import torch", set()),
    ("from models.text import tokenizers", set())])
def test_control_imports_are_found(source, names):
  assert distributions(imported(statements(ast.parse(source)))) == names
