"""Method specifications of configs and flags: a name, and sizes.

A mapping, `{"name": "rsd_s", "width": 3, "depth": 4}`, or a string of a call,
`"speculative(4, block)"`; the name in a mapping may itself be such a string.
`"my.module:make(3)"` calls a function of the user's own, see `own_code`.
"""

import ast
from collections.abc import Mapping
import functools
import inspect
import numbers
import re
import sys

import decoding_jax as dj
from decoding_jax import programs
from decoding_jax.speculation import verifiers
from experiments.app import launch, own_code
from models import heads

_FORMS = "rsd_s(3, 4), rsd_s(width=3, depth=4) or my.module:make(3)"
_VALUES = "a number, a string, True, False, None or a list of such"
# The parameter whose values are methods, by their specifications.
_METHODS = "methods"
# Sizes of a method that `--method` names without any.
_SIZES = {"width": 3, "depth": 4, "num_paths": 3, "num_beams": 4,
          "num_groups": 2, "branching": (2, 2, 1),
          "children": ((2,), (2, 0), (1, 1)),
          _METHODS: ("speculative(2, block)", "speculative(5, block)")}
# Methods by the names that papers and other engines have for them.
_ALIASES = {
    "greedy": "autoregressive with --temperature=0", "plain": "autoregressive",
    "sd": "speculative(4)", "assisted": "speculative(4)",
    "draft_model": "speculative(4)", "block": "speculative(4, block)",
    "ngram": "prompt_lookup", "pld": "prompt_lookup", "rsd": "rsd_s(3, 4)"}
# As names of methods have them.
_SIZE, _LEVELS = re.compile(r"\b(\d+)x(\d+)\b"), re.compile(r"\b\d+(-\d+)+\b")
_CHILDREN = re.compile(r"\b\d+(,\d+)*(/\d+(,\d+)*)+\b")
_HEADS = ("eagle", "eagle2", "eagle3", "dspark", "dflash", "mtp", "p_eagle")


def read(spec, where: str = "method") -> dj.Method:
  """Makes the method of a mapping or string; errors name `where` it is."""
  name, sizes = parse(spec, where)
  make = _maker(name, where)
  signature = inspect.signature(make)
  try:
    signature.bind(**sizes)
  except TypeError as e:
    takes = ", ".join(signature.parameters) or "no sizes"
    raise launch.UserError(f"{where}: {name} takes {takes}: {e}.") from e
  if _METHODS in sizes:
    if not isinstance(sizes[_METHODS], tuple):
      raise launch.UserError(
          f"{where}: {name}: {_METHODS}={sizes[_METHODS]!r}: a list of methods "
          "is needed, as [speculative(2), rsd_s(3, 4)].")
    sizes[_METHODS] = tuple(read(x, f"{where}: {name}: {_METHODS}")
                            for x in sizes[_METHODS])
  try:
    method = make(**sizes)
  except ValueError as e:
    raise launch.UserError(f"{where}: {name}: {e}") from e
  except (MemoryError, OverflowError) as e:
    given = ", ".join(f"{size}={value}" for size, value in sizes.items())
    raise launch.UserError(f"{where}: {name}: {given}: smaller sizes are "
                           "needed, of which a tree fits into memory.") from e
  if not isinstance(method, dj.Method):
    raise launch.UserError(f"{where}: {name} returns an object of type "
                           f"{type(method).__name__}: a dj.Method or a "
                           "dj.Drafter is needed.")
  return method


def _maker(name, where):
  """Returns the function that makes methods of a name of `check_name`."""
  if ":" in name:
    return _own_maker(name, own_code.load(name, where))
  return getattr(dj.methods, name)


@functools.cache
def _own_maker(name, make):
  @functools.wraps(make)
  def method(*args, **kwargs):
    made = make(*args, **kwargs)
    return verifiers.matched(name, made) if isinstance(
        made, dj.Drafter) else made

  return programs.memoized(method, f"methods.{name}")


def by_name(methods) -> dict[str, dj.Method]:
  """Returns methods by name; two of one name are a `UserError`."""
  found = {}
  for method in methods:
    if found.setdefault(method.name, method) is not method:
      raise launch.UserError(f"methods: two have the name {method.name!r}, by "
                             "which results are kept.")
  return found


def from_flag(spec: str, more=(), reward: bool = False) -> dj.Method:
  """Makes the method of `--method`; sizes that are not given have defaults.

  `more` are other names that the flag takes; without a `reward` methods are
  refused that need one.
  """
  name, sizes = parse(spec, "--method", more)
  method = read({"name": name, **_defaults(name, sizes), **sizes}, "--method")
  if not reward and any(getattr(decoder, "needs_reward", False)
                        for decoder in (method.sampled, method.greedy)):
    raise launch.UserError(
        f"--method={name} is steered by a reward, of which there is none here: "
        "experiments.generate has --reward, experiments.cdsl has tasks' "
        "rewards.")
  return method


def help_text(*others) -> str:
  """Returns the help of `--method`: examples of all methods, and `others`."""
  return launch.help_of(lambda: "Method, with sizes or without: " + ", ".join([
      *others, *(text for name in dj.methods.names()
                 for text in _calls(name))]) + ".")


def _examples(make):
  return getattr(sys.modules.get(make.__module__), "EXAMPLES", ())


def _calls(name):
  """Returns the examples of a method as `--method` takes them."""
  return [f"{name}({', '.join(f'{k}={v!r}' for k, v in sizes.items())})"
          for sizes in _examples(_maker(name, "--method"))]


def _defaults(name, sizes):
  """Returns sizes that a method needs: of `_SIZES`, else its first example."""
  make = _maker(name, "--method")
  examples = _examples(make)
  defaults = {**(examples[0] if examples else {}), **_SIZES}
  needed = [
      size for size, parameter in inspect.signature(make).parameters.items()
      if parameter.default is parameter.empty and size not in sizes]
  unset = [size for size in needed if size not in defaults]
  if unset:
    arguments = ", ".join(f"{size}=2" for size in unset)
    raise launch.UserError(f"--method={name} needs {', '.join(unset)}: "
                           f"--method='{name}({arguments})'.")
  return {size: defaults[size] for size in needed}


def parse(spec, where: str = "method", more=()) -> tuple[str, dict]:
  """Splits a specification into name and sizes, hashable, perhaps too few."""
  if isinstance(spec, str):
    return _parse_call(spec, where, more)
  # A ConfigDict has the methods of a mapping, and is none.
  if not isinstance(spec, Mapping) and not hasattr(spec, "items"):
    raise launch.UserError(f"{where}={spec!r}: a method as {_FORMS}, or a "
                           "mapping with its name and sizes is needed.")
  sizes = dict(spec.items())
  name, first = sizes.pop("name", None), {}
  if isinstance(name, str):
    name, first = _parse_call(name, where, more)
  check_name(name, where, more)
  return name, _joined(name, first, {
      size: _frozen(value, f"{where}: {size}={value!r}")
      for size, value in sizes.items()}, where)


def check_name(name, where: str, more=()):
  """Raises `UserError` unless it is the name of a method; see `parse`."""
  names = dj.methods.names()
  if not isinstance(name, str):
    raise launch.UserError(f"{where}: the name of a method is needed, not "
                           f"{name!r}.")
  if name in names:
    return
  if own_code.module_of(name):
    own_code.load(name, where)
    return
  if name in more:
    hint = "it takes no sizes."
  elif name in _ALIASES:
    hint = f"it is {_ALIASES[name]} here."
  elif name in (*_HEADS, *heads.names()):
    hint = ("it is a head, which drafts: --draft names its folder, and a "
            "method is one such as rsd_s(3, 4).")
  else:
    hint = launch.nearest(name, [*more, *names])
  raise launch.UserError(f"{where}: {name!r} is no method: {hint}")


def call(text: str, where: str, takes, form: str = "a call of one of its names "
         "is needed") -> tuple[str, dict]:
  """Splits "f(1, width=2)", "f" or "my.module:f(1)" into name and arguments.

  `takes` is `name -> list of parameters`, and raises for an unknown name.
  Arguments are hashable; errors name `where`, and say that `form` is needed.
  """
  wrong = launch.UserError(f"{where}={text!r}: {form}.")
  module = own_code.module_of(text)
  try:
    node = ast.parse(text.strip().removeprefix(module), mode="eval").body
  except (SyntaxError, ValueError) as e:
    raise wrong from e
  if isinstance(node, ast.Name):
    node = ast.Call(node, [], [])
  if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
    raise wrong
  names = takes(name := module + node.func.id)
  if len(node.args) > len(names):
    raise launch.UserError(f"{where}={text!r}: {name} takes "
                           f"{', '.join(names) or 'no sizes'}.")
  given = [*zip(names, node.args), *((x.arg, x.value) for x in node.keywords)]
  values = {}
  for size, node in given:
    # `f(**x)` has no name, `f(*x)` no literal.
    if size is None:
      raise wrong
    value = _literal(node, where, text)
    values = _joined(name, values, {
        size: _frozen(value, f"{where}: {size}={value!r}")}, where)
  return name, values


def called(load, text: str, where: str, *first):
  """Returns what a function, `load(name)`, returns by a call, see `call`.

  Its first arguments are `first`; an error of it is a `UserError`.
  """
  def takes(name):
    return list(inspect.signature(load(name)).parameters)[len(first):]

  name, arguments = call(text, where, takes)
  function = load(name)
  try:
    inspect.signature(function).bind(*first, **arguments)
    return function(*first, **arguments)
  except (TypeError, ValueError) as e:
    raise launch.UserError(f"{where}={text!r}: {e}") from e


def own_call(text: str, where: str):
  """Returns what a function of the user's own returns, "my.module:make(3)"."""
  return called(lambda name: own_code.load(name, where), text, where)


def _parse_call(text, where, more):
  def takes(name):
    check_name(name, where, more)
    return list(inspect.signature(_maker(name, where)).parameters)

  known = text.partition("(")[0].strip()
  calls = _calls(known) if known in dj.methods.names() else ()
  form = f"a method as {' or '.join(calls) or _FORMS} is needed"
  # Tables print 7x3 for 7, 3, 4-2-1 for (4, 2, 1), 2/1,0 for ((2,), (1, 0)).
  plain = _CHILDREN.sub(lambda x: f"(({x[0].replace('/', ',), (')},))", text)
  plain = _SIZE.sub(r"\1, \2", _LEVELS.sub(
      lambda x: f"({x[0].replace('-', ', ')})", plain))
  name, sizes = call(plain, where, takes, form)
  if plain != text:
    made = read({"name": name, **sizes}, f"{where}={text!r}: {form}").name
    if made != text.strip():
      raise launch.UserError(f"{where}={text!r}: {form}; {plain} is {made}.")
  return name, sizes


def _literal(node, where, text):
  # Quotation marks may be left out, as they are in names of methods.
  if isinstance(node, ast.Name):
    return node.id
  if isinstance(node, (ast.List, ast.Tuple)) and any(
      isinstance(x, ast.Call) for x in node.elts):
    return tuple(map(ast.unparse, node.elts))
  try:
    return ast.literal_eval(node)
  except (ValueError, TypeError) as e:
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
