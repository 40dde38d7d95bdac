"""A Jinja sandbox in which every template ends, with a text of bounded size.

Jinja's own sandbox does not bound loops or strings. Here each loop round, call,
filter and operator is paid out of one budget, by the size of its operands and
result, before anything is made. Only the filters of chat templates are there.
"""

import contextvars
import functools
import itertools
import re
import types

import jinja2
from jinja2 import ext
from jinja2 import nodes
from jinja2 import sandbox
from jinja2 import visitor

# Characters of a template, of any text in it and of the result; items of lists.
MAX_SOURCE, MAX_SIZE = 1 << 18, 1 << 22
# All that a rendering may cost: some 500,000 rounds of a loop, a few seconds.
_BUDGET, _STEP = 1 << 29, 1000
# Costs in characters that take as long: of an item that `_size` visits; of each
# character or item of slow filters, which compare items and change their case.
_ITEM, _COMPARING = 32, 64
_PRICES = {  # Of other filters 1.
    "indent": 4, "join": 8, "title": 16, "wordcount": 8, "list": 16, "map": 16,
    "reverse": 16, "rejectattr": 16, "selectattr": 16, **dict.fromkeys(
        ("dictsort", "groupby", "max", "min", "sort", "unique"), _COMPARING)}
# What the sizes of all arguments of a method of a text may multiply to.
_MAX_PRODUCT = 1 << 28
_MAX_BITS, _MAX_DIGITS = 64, 7
# Filters that read whole texts, and those that see a list item by item.
_OF_TEXTS = """
    capitalize d default e escape float format indent int join lower replace
    safe string title tojson trim truncate upper wordcount
    """.split()
_OF_LISTS = """
    abs attr count dictsort first groupby items last length list map max min
    reject rejectattr reverse select selectattr sort unique
    """.split()
_GLOBALS = ("cycler", "dict", "joiner", "namespace", "range")
# Of operations that the parser puts around others; no template can name them.
_ROUNDS, _JOIN, _ITEMS, _TEXTS = " rounds", " join", " items", " texts"
_LAZY = (types.GeneratorType, type({}.items()), type({}.keys()),
         type({}.values()), map, filter, range, reversed, itertools.chain)

_left = contextvars.ContextVar("left")


class _Generation(ext.Extension):
  """`{% generation %}` around what a model writes: a mark for training."""
  tags = {"generation"}

  def parse(self, parser):
    line = next(parser.stream).lineno
    return nodes.Scope(parser.parse_statements(
        ["name:endgeneration"], drop_needle=True), lineno=line)


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
  """The environment of transformers' chat templates, with limits."""
  intercepted_binops = frozenset(("+", "*", "**", "%"))

  def __init__(self):
    super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False,
                     extensions=["jinja2.ext.loopcontrols", _Generation],
                     finalize=_finalize)
    self.filters = {
        **{name: _limited(self.filters[name], name in _OF_TEXTS,
                          _PRICES.get(name, 1))
           for name in (*_OF_TEXTS, *_OF_LISTS)},
        _ROUNDS: _rounds, _JOIN: _join, _ITEMS: _items, _TEXTS: _texts}
    self.tests = {name: _compared(test) for name, test in self.tests.items()}
    self.globals = {name: self.globals[name] for name in _GLOBALS}
    self.data = 0

  def text_filter(self, name, function):
    self.filters[name] = _limited(function, True)

  def from_source(self, source: str) -> jinja2.Template:
    """Compiles a template; raises anything if it is wrong."""
    if len(source) > MAX_SOURCE:
      raise jinja2.TemplateError(f"it has {len(source)} characters, more than "
                                 f"{MAX_SOURCE}")
    return self.from_string(source)

  def render(self, template: jinja2.Template, **names) -> str:
    """Renders a template; `jinja2.TemplateError` where a limit is met."""
    token = _left.set([_BUDGET])
    try:
      return template.render(**names)
    finally:
      _left.reset(token)

  def concat(self, parts):
    """Joins the parts of the result, as far as it may go."""
    joined, size = [], 0
    for part in parts:
      joined.append(part)
      size += len(part)
      _check_size(size)
    return "".join(joined)

  def _parse(self, source, name, filename):
    tree = super()._parse(source, name, filename)
    self.data = _data(tree)
    return _Payments().visit(tree)

  def call(self, context, function, /, *args, **kwargs):
    function_ = getattr(function, "__wrapped__", function)
    subject = getattr(function_, "__self__", None)
    if not isinstance(subject, str):
      # A macro or a recursive loop writes no more than the whole template.
      _pay(self.data)
      if getattr(function_, "__name__", "") == "changed":  # Of a loop.
        _pay(sum(map(_size, args)))
      return super().call(context, function, *args, **kwargs)
    args = [_listed(x) for x in args]
    if function_.__name__ in ("format", "format_map"):
      check_format(subject)
    sizes = [abs(x) if type(x) is int else _text_size(x)
             for x in (subject, *args, *kwargs.values())]
    _check_product(sizes)
    result = super().call(context, function, *args, **kwargs)
    _pay(_text_size(result))
    return result

  def call_binop(self, context, operator, left, right):
    values = left, right
    if operator in ("*", "**") and type(left) is type(right) is int:
      bits = left.bit_length()
      bits = bits * abs(right) if operator == "**" else (
          bits + right.bit_length())
      if bits > _MAX_BITS:
        raise jinja2.TemplateError(f"a number has more than {_MAX_BITS} bits")
    elif operator == "*" and any(type(x) is int for x in values):
      _check_size(_product([abs(x) if type(x) is int else _length(x)
                            for x in values]))
    elif operator == "%" and isinstance(left, str):
      check_format(left)
      _check_product([abs(x) if type(x) is int else _text_size(x)
                      for x in (left, *(right if isinstance(right, tuple)
                                        else [right]))])
    result = super().call_binop(context, operator, left, right)
    _pay(_length(result))
    return result


class _Payments(visitor.NodeTransformer):
  """Puts a payment around what Jinja would compute by itself."""

  def visit_For(self, node):  # pylint: disable=invalid-name
    rounds = [nodes.Const(_data(node))]
    node = self.generic_visit(node)
    node.iter = _filtered(node.iter, _ROUNDS, rounds)
    return node

  def visit_Concat(self, node):  # pylint: disable=invalid-name
    node = self.generic_visit(node)
    return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOIN)

  def visit_Compare(self, node):  # pylint: disable=invalid-name
    node = self.generic_visit(node)
    node.expr = _filtered(node.expr, _TEXTS)
    for operand in node.ops:
      operand.expr = _filtered(operand.expr, _TEXTS)
    return node

  def _made(self, node):
    node = self.generic_visit(node)
    if getattr(node, "ctx", "load") != "load":  # A target of an assignment.
      return node
    return _filtered(node, _ITEMS)

  visit_List = visit_Tuple = visit_Dict = _made

  def visit_Getitem(self, node):  # pylint: disable=invalid-name
    node = self.generic_visit(node)
    if isinstance(node.arg, nodes.Slice) and node.ctx == "load":
      return _filtered(node, _ITEMS)
    return node


def _filtered(node, name, args=()):
  return nodes.Filter(node, name, list(args), [], None, None,
                      lineno=node.lineno)


def _data(node):
  """Returns the characters that a part of a template writes by itself."""
  return sum(len(x.data) for x in node.find_all(nodes.TemplateData))


def _limited(function, of_texts, price=1):
  """Returns a filter that pays for what it reads and makes."""
  # Those take as long as all texts among the items.
  measure = _size if price == _COMPARING else _length
  first = hasattr(function, "jinja_pass_arg")

  @functools.wraps(function)
  def limited(*args, **kwargs):
    args = [*args[:first], *(_listed(x) for x in args[first:])]
    read = [*args[first:], *kwargs.values()]
    if of_texts:
      _check_product([abs(x) if type(x) is int else _text_size(x)
                      for x in read], price)
      if function.__name__ == "do_format":
        check_format(str(read[0]))
    else:
      _pay(price * sum(map(measure, read)))
    result = function(*args, **kwargs)
    _pay(_text_size(result) if of_texts else _length(result))
    return result

  return limited


def _compared(test):
  """Returns a test that pays for what it compares."""
  @functools.wraps(test)
  def compared(*args):
    if len(args) > 1:
      _pay(sum(map(_size, args)))
    elif isinstance(args[0], str):
      _pay(len(args[0]))
    return test(*args)

  return compared


def _rounds(values, data):
  for value in values:
    _pay(data)
    yield value


def _join(values):
  _pay(_text_size(values))
  return "".join(map(str, values))


def _items(value):
  """Pays for a list, with the nested ones in it, or for a text."""
  _pay(_size(value, texts=isinstance(value, str)))
  return value


def _texts(value):
  _pay(_size(value))
  return value


@jinja2.pass_context  # So that nothing is computed when it is compiled.
def _finalize(context, value):
  del context
  _pay(_text_size(value))
  return value


def _pay(size, step=_STEP):
  left = _left.get()
  left[0] -= step + size
  if left[0] < 0:
    raise jinja2.TemplateError("it takes too many steps")


def _check_size(size):
  if size > MAX_SIZE:
    raise jinja2.TemplateError(f"a text or list is longer than {MAX_SIZE}")


def _product(sizes):
  return functools.reduce(lambda x, y: x * max(y, 1), sizes, 1)


def _check_product(sizes, price=1):
  if _product(sizes) > _MAX_PRODUCT:
    raise jinja2.TemplateError("a text would be too long")
  _pay(price * sum(sizes))


def check_format(text: str) -> None:
  """Raises if a width in a format exceeds the texts that may be made."""
  widths = re.findall(r"\d+", text)
  if any(len(x) > _MAX_DIGITS for x in widths):
    raise jinja2.TemplateError("a format asks for too long a text")
  _check_size(sum(map(int, widths)))


def _listed(value):
  if not isinstance(value, _LAZY):
    return value
  return list(_rounds(value, 0))


def _length(value):
  """Returns the characters of a text, or the items of a list."""
  length = len(value) if isinstance(value, (str, list, tuple, dict)) else 1
  _check_size(length)
  return length


def _text_size(value):
  """Returns the size of a value as a text, which it must be or could become."""
  return _size(value, strict=True)


def _size(value, strict=False, texts=True):
  """Returns characters and items of a value and of all that is in it."""
  size, items, stack = 0, 0, [value]
  while stack:
    x = stack.pop()
    size, items = size + 1, items + 1
    if isinstance(x, str):
      size += len(x) if texts else 0
    elif isinstance(x, dict):
      stack.extend(x)
      stack.extend(x.values())
    elif isinstance(x, (list, tuple)):
      stack.extend(x)
    elif type(x) is int:
      size += x.bit_length() // 3
    elif strict and not isinstance(
        x, (bool, float, type(None), jinja2.Undefined)):
      raise jinja2.TemplateError(f"a value of type {type(x).__name__} is no "
                                 "text")
    _check_size(size)
  _pay(_ITEM * items, 0)
  return size
