"""JSON of other people: types, ranges, and what is no JSON."""

import json

import pytest

from models.folders import json_files, resolve

Field = json_files.Field


@pytest.mark.parametrize("content, message", [
    (b"{", "is not a JSON object: Expecting property name"),
    (b"[1]", r"is not a JSON object: \[1\] is of type list"),
    (b"null", "None is of type NoneType"),
    (b"\xff{}", "can't decode byte 0xff"),
    (b"[" * 100_000, "nested too deep"),
    (b'{"a":' * 80 + b"1" + b"}" * 80, "nested more than 64 deep"),
    (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    (b" " * 100, "has more than 99 bytes"),
])
def test_files_that_are_no_object(tmp_path, content, message):
  path = tmp_path / "a.json"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as error:
    json_files.read(path, *([99] if len(content) == 100 else []))
  assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
  with pytest.raises(FileNotFoundError):
    json_files.read(tmp_path / "none.json")
  with pytest.raises(ValueError, match="cannot be read: Is a directory"):
    json_files.read(tmp_path)
  with pytest.raises(ValueError, match="cannot be read: File name too long"):
    json_files.read(tmp_path / ("a" * 300))
  with pytest.raises(ValueError, match="model 'aaa.*': File name too long"):
    resolve.folder("a" * 3000)


@pytest.mark.parametrize("value, field, expected", [
    (3, Field(int, 1, 3), 3), (3, Field(float, 1, 3), 3.0),
    (True, Field(bool), True), ([1, 2.5], Field(list, 0, 2, Field(float)),
                                [1.0, 2.5]),
    ({"a": "b"}, Field(dict, items=Field(str)), {"a": "b"})])
def test_values_that_are_allowed(value, field, expected):
  actual = json_files.check("name", value, field)
  assert actual == expected and type(actual) is type(expected)


@pytest.mark.parametrize("value, field, message", [
    (3.0, Field(int), r"name=3\.0: a value of type int is needed"),
    (True, Field(int), "name=True: a value of type int"),
    (True, Field(float), "name=True: a value of type float"),
    (None, Field(dict), "name=None: a value of type dict"),
    ([], Field(str), r"name=\[\]: a value of type str"),
    (4, Field(int, 1, 3), "name=4: 1 to 3 is needed"),
    (0, Field(int, 1), "name=0: at least 1 is needed"),
    (float("inf"), Field(float, 0), "name=inf: at least 0 is needed"),
    (float("nan"), Field(float), "name=nan: "),
    (10**400, Field(float), "name=1000.*: a value of type float"),
    ([1, "a"], Field(list, items=Field(int)), r"name\[1\]='a': a value of"),
    ([1, 2], Field(list, 0, 1), "name has 2 items: 0 to 1"),
    ({"a": 1}, Field(dict, items=Field(str)), "name.'a'=1: a value of type"),
])
def test_values_that_are_not(value, field, message):
  with pytest.raises(ValueError, match=message):
    json_files.check("name", value, field)


def test_errors_are_short():
  for value in ("a\n" * 1000, [[1] * 100] * 100, 10**5000):
    with pytest.raises(ValueError) as error:
      json_files.check("name", value, Field(dict))
    assert len(str(error.value)) < 200 and "\n" not in str(error.value)
  assert json.loads(json.dumps({"a": 1})) == json_files.parse(b'{"a": 1}')
