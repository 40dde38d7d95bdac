"""Chat templates that would never end, fill the memory, or just fail."""

import json

import pytest

from models.text import chat_template, tokenizers

_LOOP = ("{% set ns = namespace(x=START) %}{% for i in range(60) %}"
         "{% set ns.x = STEP %}{% endfor %}{{ ns.x }}")
_MANY = "{% for i in range(99999) %}"
_END = "{% endfor %}"


def _grown(start, step):
  return _LOOP.replace("START", start).replace("STEP", step)


@pytest.fixture(name="render")
def _render(tmp_path):
  def render(template):
    (tmp_path / chat_template.FILE).write_text(template)
    return chat_template.load(tmp_path)([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "a"}])

  return render


@pytest.mark.cases(12)
@pytest.mark.parametrize("template, message", [
    ("{{ 1 / 0 }}", "refuses the messages: ZeroDivisionError: division by"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
     "{% endmacro %}{{ f(60) }}", "too many steps"),
    ("{% for x in [1, 1] recursive %}{% if loop.depth < 40 %}{{ loop([1, 1]) }}"
     "{% endif %}{% endfor %}", "too many steps"),
    (_MANY * 3 + _END * 3, "too many steps"),
    (_MANY + "x" * 100_000 + _END, "longer than 4194304"),
    ("{% set a %}" + _MANY + "x" * 100_000 + _END + "{% endset %}{{ a }}",
     "too many steps"),
    ("{% set x = 'a' * 4000000 %}" + _MANY + "{% set y = x[1:] %}" + _END,
     "too many steps"),
    ("{% set x = 'a' * 4000000 %}" + _MANY + "{% if 'b' in x %}{% endif %}"
     + _END, "too many steps"),
    ("{% set x = 'a' * 4000000 %}" + _MANY + "{% if x is eq (x ~ 'a') or x is "
     "lower %}{% endif %}" + _END, "too many steps"),
    # Of what is slow, 30 times is too often already: it takes four seconds.
    ("{% set x = 'a ' * 500000 %}{% for i in range(35) %}{% set y = x | title "
     "%}" + _END, "too many steps"),
    ("{% set x = [[1]] * 400000 %}{% for i in range(30) %}{% set y = [x] %}"
     + _END, "too many steps"),
    ("{% set x = ['a' * 99999] * 30 %}{% for i in range(9) %}{% set y = x | "
     "sort %}" + _END, "too many steps"),
    (_grown("'a'", "ns.x ~ ns.x"), "longer than"),
    (_grown("'a'", "ns.x + ns.x"), "longer than"),
    (_grown("3", "ns.x * ns.x"), "more than 64 bits"),
    (_grown("[1]", "[ns.x, ns.x]"), "longer than"),
    ("{{ 'a' * 10**10 }}", "longer than"),
    ("{{ 2 ** (10 ** 10) }}", "more than 64 bits"),
    ("{{ '%1000000000d' % 1 }}", "format asks for too long"),
    ("{{ '%*d' % (1000000000, 1) }}", "text would be too long"),
    ("{{ '{:1000000000d}'.format(1) }}", "format asks for too long"),
    ("{{ 'a'.ljust(10000000000) }}", "text would be too long"),
    ("{{ ('a' * 9999).replace('', 'b' * 99999) }}", "text would be too long"),
    ("{{ 'x' | indent(1000000000) }}", "text would be too long"),
    ("{{ messages | tojson(indent=1000000000) }}", "text would be too long"),
    ("{{ range(100000) | join(',' * 10000) }}", "text would be too long"),
    ("{{ strftime_now('%1000000000Y') }}", "format asks for too long"),
    ("{{ namespace(x=1) }}", "type Namespace is no text"),
    ("{% include 'other' %}", "no loader"),
    ("{{ 'a' | center(10) }}", "is wrong: No filter named 'center'"),
    ("{{ messages | rounds(-1000) }}", "is wrong: No filter named 'rounds'"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is wrong: RecursionError"),
    ("{% for i in [1] %}" * 30 + _END * 30, "is wrong: SyntaxError"),
    ("x" * 300_000, "is wrong: it has 300000 characters"),
    ("{% if false %}x{% endif %}", "gives an empty prompt"),
    ("", "gives an empty prompt"),
])
def test_templates_that_are_stopped(render, template, message):
  with pytest.raises(ValueError, match=message) as error:
    render(template)
  assert chat_template.FILE in str(error.value)
  assert "\n" not in str(error.value) and len(str(error.value)) < 400


# What published templates do: those of Llama 3, Qwen 3, Gemma, Phi, SmolLM3.
@pytest.mark.parametrize("template, expected", [
    ("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content | trim }}"
     "{% endfor %}", "<|user|>Hi<|assistant|>a"),
    ("{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }}"
     "{% if not loop.last %},{% endif %}{% endfor %}", "0assistant,1user"),
    ("{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}"
     "{% set ns.n = ns.n + 1 %}{% endfor %}"
     "{{ ns.n ~ '|' ~ messages | length }}", "1|2"),
    ("{% if (messages[0].role == 'user') != (0 % 2 == 0) %}"
     "{{ raise_exception('alternate') }}{% endif %}ok", "ok"),
    ("{{ 'a</think>\nb'.split('</think>')[-1].lstrip('\n') }}", "b"),
    ("{{ messages[0] | tojson(indent=1) }}",
     json.dumps({"role": "user", "content": "Hi"}, indent=1)),
    ("{{ messages | map(attribute='role') | join(', ') | upper }}",
     "USER, ASSISTANT"),
    ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
     "role=user;content=Hi;"),
    ("{% for k, v in messages[0] | dictsort %}{{ k }};{% endfor %}",
     "content;role;"),
    ("{% macro turn(m) %}[{{ m.role }}]{% endmacro %}{{ turn(messages[0]) }}",
     "[user]"),
    ("{% if messages[0].content is string and tools is none and "
     "messages is iterable %}{{ (messages | selectattr('role', 'equalto', "
     "'user') | list | first).content }}{% endif %}", "Hi"),
    ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
     "{% endfor %}", "02"),
    ("{{ '%s: %d' % ('a', 3) }}{{ '{} {:>3}'.format('b', 1) }}", "a: 3b   1"),
    ("{% set x = ['a', 'b'] + ['c'] %}{{ x | last }}{{ 2 * 3 - 1 }}", "c5"),
    ("{% set text %}{{ messages[0].content }}!{% endset %}{{ text }}", "Hi!"),
    ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHib"),
    ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=True, sort_keys=true, "
     "separators=(',', ':')) }}", r'{"a":"\u00e9","b":1}'),
])
def test_what_templates_do(render, template, expected):
  assert render(template) == expected


def test_limits_are_of_one_rendering(tmp_path):
  (tmp_path / chat_template.FILE).write_text(
      "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n"
      "{% endfor %}")
  render = chat_template.load(tmp_path)
  messages = [{"role": "user", "content": "word " * 200}] * 2000
  for _ in range(3):
    assert len(render(messages)) > 2_000_000


@pytest.mark.parametrize("fields, message", [
    ({"chat_template": 3}, "chat_template=3: a value of type str or list"),
    ({"chat_template": [3, {"name": "default"}]}, "has no chat template"),
    ({"chat_template": "a", "bos_token": 3},
     "bos_token=3: a value of type str or dict is needed"),
    ({"chat_template": "a", "bos_token": {"content": None}},
     "bos_token has no content of type str"),
    ([], "is not a JSON object")])
def test_settings_of_other_types(tmp_path, fields, message):
  (tmp_path / tokenizers.CONFIG).write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=message) as error:
    chat_template.load(tmp_path)
  assert str(tmp_path) in str(error.value)
