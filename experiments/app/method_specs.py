"""Method specifications of configs and flags: a name, and sizes.

A specification is a mapping, `{"name": "rsd_s", "width": 3, "depth": 4}`, or a
string of a call, `"rsd_s(width=3, depth=4)"` or `"speculative(4, block)"`. The
name in a mapping may itself be such a string, to which the mapping adds sizes.
"""

import ast
from collections.abc import Mapping
import inspect
import numbers

import decoding_jax as dj
from experiments.app import launch

_FORMS = "as rsd_s(3, 4) or rsd_s(width=3, depth=4)"
_VALUES = "a number, a string, True, False, None or a list of such"


def read(spec, where: str = "method") -> dj.Method:
  """Makes the method of a specification.

  Args:
    spec: a mapping or a string.
    where: the flag or field that has it, for errors.

  Returns:
    The method.

  Raises:
    UserError: naming flag or field, what is wrong and what is allowed.
  """
  name, sizes = parse(spec, where)
  signature = inspect.signature(getattr(dj.methods, name))
  try:
    signature.bind(**sizes)
  except TypeError as e:
    takes = ", ".join(signature.parameters) or "no sizes"
    raise launch.UserError(f"{where}: {name} takes {takes}: {e}.") from e
  try:
    return getattr(dj.methods, name)(**sizes)
  except ValueError as e:
    raise launch.UserError(f"{where}: {name}: {e}") from e
  except (MemoryError, OverflowError) as e:
    given = ", ".join(f"{size}={value}" for size, value in sizes.items())
    raise launch.UserError(f"{where}: {name}: {given}: smaller sizes are "
                           "needed, of which a tree fits into memory.") from e


def parse(spec, where: str = "method", more=()) -> tuple[str, dict]:
  """Splits a specification into name and sizes, which may be too few.

  Args:
    spec: a mapping or a string.
    where: see `read`.
    more: what else could be given as a name, for the error.

  Returns:
    The name of a method, and a dict from names of sizes to hashable values.

  Raises:
    UserError: as `read`, without regard to what the sizes are.
  """
  if isinstance(spec, str):
    return _parse_call(spec, where, more)
  # A ConfigDict has the methods of a mapping, and is none.
  if not isinstance(spec, Mapping) and not hasattr(spec, "items"):
    raise launch.UserError(f"{where}={spec!r}: a method {_FORMS}, or a mapping "
                           "with its name and sizes is needed.")
  sizes = dict(spec.items())
  name = sizes.pop("name", None)
  found = {}
  if isinstance(name, str):
    name, found = _parse_call(name, where, more)
  check_name(name, where, more)
  return name, _joined(name, found, freeze(sizes, where), where)


def freeze(sizes, where: str) -> dict:
  """Makes the values of sizes hashable: lists become tuples.

  Args:
    sizes: a mapping.
    where: see `read`.

  Returns:
    A dict.

  Raises:
    UserError: naming the size, for a value that no size can have.
  """
  return {name: _frozen(value, f"{where}: {name}={value!r}")
          for name, value in sizes.items()}


def check_name(name, where: str, more=()):
  """Raises `UserError` unless it is the name of a method; see `parse`."""
  names = dj.methods.names()
  if name not in names:
    raise launch.UserError(
        f"{where}: {name!r} is not one of {', '.join([*names, *more])}.")


def examples() -> list[str]:
  """Returns the examples of all methods as strings that can be read."""
  return [f"{name}({', '.join(f'{k}={v!r}' for k, v in sizes.items())})"
          for name, found in dj.methods.example_arguments().items()
          for sizes in found]


def call(text: str, where: str, takes, form: str = "a call of one of its names "
         "is needed") -> tuple[str, dict]:
  """Splits the text of a call into its name and its arguments by name.

  Args:
    text: such as "f(1, width=2)" or "f".
    where: as of `read`.
    takes: `name -> list of parameters`, which raises for one that is unknown.
    form: what is needed, for the error about a text that is no call.

  Returns:
    The name, and a dict from parameters to hashable values.

  Raises:
    UserError: for a text that is no call, and arguments that are too many,
      given twice, or no literals.
  """
  wrong = launch.UserError(f"{where}={text!r}: {form}.")
  try:
    node = ast.parse(text.strip(), mode="eval").body
  except (SyntaxError, ValueError) as e:
    raise wrong from e
  if isinstance(node, ast.Name):
    node = ast.Call(node, [], [])
  if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
    raise wrong
  name = node.func.id
  names = takes(name)
  if len(node.args) > len(names):
    raise launch.UserError(f"{where}={text!r}: {name} takes "
                           f"{', '.join(names) or 'no sizes'}.")
  given = [*zip(names, node.args), *((x.arg, x.value) for x in node.keywords)]
  found = {}
  for size, value in given:
    # `f(**x)` has no name, `f(*x)` no literal.
    if size is None:
      raise wrong
    value = _literal(value, where, text)
    found = _joined(name, found, freeze({size: value}, where), where)
  return name, found


def _parse_call(text, where, more):
  def takes(name):
    check_name(name, where, more)
    return list(inspect.signature(getattr(dj.methods, name)).parameters)

  return call(text, where, takes, f"a method {_FORMS} is needed")


def _literal(node, where, text):
  # Quotation marks may be left out, as they are in names of methods.
  if isinstance(node, ast.Name):
    return node.id
  try:
    return ast.literal_eval(node)
  except ValueError as e:
    raise launch.UserError(f"{where}={text!r}: {ast.unparse(node)} is not "
                           f"{_VALUES}.") from e


def _joined(name, first, second, where):
  twice = [size for size in second if size in first]
  if twice:
    raise launch.UserError(f"{where}: {name} is given {', '.join(twice)} "
                           "twice.")
  return {**first, **second}


def _frozen(value, where):
  if isinstance(value, (list, tuple)):
    return tuple(_frozen(x, where) for x in value)
  if value is not None and not isinstance(value, (numbers.Real, str)):
    raise launch.UserError(f"{where}: {_VALUES} is needed.")
  return value
