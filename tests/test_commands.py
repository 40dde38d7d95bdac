"""Commands of README, docs and docstrings name what exists.

That is programs, flags, presets of configs and their fields.
Nothing runs: flags are read from the sources of a program and of what it
imports, since programs define flags of the same names.
"""

import ast
import functools
import importlib.util
import pathlib
import re
import shlex

from absl import flags
from ml_collections.config_flags import config_path
import pytest

ROOT = pathlib.Path(__file__).parents[1]
TEXTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (
    ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
TEXTS.update({folder: "\n".join(
    ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    for path in sorted((ROOT / folder).rglob("*.py")))
              for folder in ("configs", "experiments")})
_COMMAND = re.compile(r"python -m ((?:experiments|models|decoding_jax)\.[\w.]+)"
                      r"([^`]*)")
# What a reader puts in, such as `<folder of the head>`, and `...`.
_OPEN = re.compile(r"<[^<>]*>|\.\.\.")


def commands(text):
  """Yields (module, arguments) of the commands of a text.

  Between backticks they may break off at the end of a line; in blocks they go
  on after a backslash.
  """
  for line in text.replace("\\\n", " ").splitlines():
    for module, rest in _COMMAND.findall(line):
      try:
        result = shlex.split(_OPEN.sub("x", rest), comments=True)
      except ValueError:  # An apostrophe of the sentence around it.
        result = rest.split()
      yield module, [x for x in result if x.startswith("--")]


def source(module):
  """Returns the syntax tree of a module of ours; None if there is none."""
  path = ROOT / module.replace(".", "/")
  results = [x for x in (path.with_suffix(".py"), path / "__main__.py",
                         path / "__init__.py") if x.is_file()]
  return ast.parse(results[0].read_text("utf-8")) if results else None


@functools.cache
def own_flags(module):
  """Returns the flags that a module defines, and what it imports of ours."""
  defined, imported = set(), set()
  for node in ast.walk(source(module) or ast.Module([], [])):
    if isinstance(node, ast.ImportFrom):
      imported |= {f"{node.module}.{x.name}" for x in node.names}
    name = getattr(getattr(node, "func", None), "attr", "")
    if name == "define_config":
      defined.add("config")
    elif name.startswith("DEFINE_") and name != "DEFINE_config_file":
      defined |= {x.value for x in node.args[:1] if isinstance(x, ast.Constant)}
  return defined, {x for x in imported if x.startswith("experiments.")}


@functools.cache
def all_flags(module):
  """Returns the flags of a program, those of absl among them."""
  defined, seen, left = set(flags.FLAGS) | {"help", "helpfull"}, set(), {module}
  while left:
    seen |= left
    parts = [own_flags(x) for x in left]
    defined |= set().union(*(names for names, _ in parts))
    left = set().union(*(imported for _, imported in parts)) - seen
  return defined


@functools.cache
def config(name, preset):
  """Returns the config of a preset, as `--config` would."""
  path = ROOT / "configs" / f"{pathlib.PurePath(name).stem}.py"
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(*([preset] if preset else []))


def field_fault(settings, argument):
  """Yields an argument `--config.<field>=<value>` if there is no such field."""
  try:
    config_path.get_value(argument.partition("=")[0].removeprefix("--config."),
                          settings)
  except (AttributeError, IndexError, KeyError, TypeError, ValueError):
    yield argument


def faults(module, arguments):
  """Yields what of a command does not exist."""
  if source(module) is None:
    yield module
    return
  settings = None
  for argument in arguments:
    name, _, value = argument[2:].partition("=")
    if not {name.partition(".")[0], name.removeprefix("no")} & all_flags(
        module):
      yield argument
    elif name == "config":
      try:
        settings = config(*value.partition(":")[::2])
      except (OSError, ValueError):
        yield argument
    elif name.startswith("config."):
      yield from field_fault(
          settings or config(module.rpartition(".")[2], ""), argument)


def test_commands_exist():
  assert not [(name, module, wrong) for name, text in TEXTS.items()
              for module, arguments in commands(text)
              for wrong in faults(module, arguments)]


def test_commands_are_found():
  """In blocks, after a backslash, in backticks; with texts to put in."""
  assert [*commands(
      "  python -m experiments.rsd --config=rsd:smoke --mesh=data:2 \\\n"
      "      --workdir=<a folder> ... # --comment\n"
      "`python -m models.checkpoints <folder>` isn't, "
      "`python -m experiments.rsd --config=x` is.")] == [
          ("experiments.rsd", ["--config=rsd:smoke", "--mesh=data:2",
                               "--workdir=x"]),
          ("models.checkpoints", []), ("experiments.rsd", ["--config=x"])]


@pytest.mark.parametrize("command, wrong", [
    ("experiments.none --help", "experiments.none"),
    ("experiments.generate --promt=x --nostream", "--promt=x"),
    ("experiments.generate --config=rsd", "--config=rsd"),
    ("experiments.rsd --config=rsd:huge", "--config=rsd:huge"),
    ("experiments.rsd --config=nowhere.py", "--config=nowhere.py"),
    ("experiments.rsd --config.promts=3", "--config.promts=3"),
    ("experiments.train --config=train:smoke --config.sizes.no=3",
     "--config.sizes.no=3")])
def test_control_mistakes_are_seen(command, wrong):
  [(module, arguments)] = commands(f"python -m {command}")
  assert [*faults(module, arguments)] == [wrong]
