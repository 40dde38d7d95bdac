"""Grammar engines side by side, on the schemas that come along."""

import gzip
import json

import pytest

from configs import grammar as config_lib
from experiments import grammar
from experiments.app import launch
from experiments.data import schema_tasks


def test_automata_pass_all_of_the_shipped_schemas(tmp_path):
  config = config_lib.get_config()
  config.engines = ("automaton",)
  tasks = schema_tasks.read(str(schema_tasks.SHIPPED))
  path = tmp_path / "results.jsonl"
  records = grammar.compare(config, tasks[:2], path)
  # What has a result is not compiled again.
  assert grammar.compare(config, tasks, path)[:2] == records
  records = grammar.compare(config, tasks, path)
  assert len(records) == len(path.read_text().splitlines()) == len(tasks)
  assert all(grammar.passes(x) and x["masks"] > 10 for x in records)
  head, line = grammar.table(records)
  assert dict(zip(head, line))["pass %"] == "100.0"


def test_what_an_engine_gets_wrong_is_counted():
  """One that allows what has no quotation mark, whatever the schema."""
  class Letters:
    """A tokenizer of bytes."""

    def encode(self, text, add_special_tokens):
      assert not add_special_tokens
      self.ids = list(text.encode())
      return self

  def engine(schema, pieces, eos_id):
    if "oneOf" in schema:
      raise ValueError("oneOf")
    return lambda tokens: (ord('"') not in tokens, len(tokens), 1e-6)

  task = schema_tasks.SchemaTask("a", {"minimum": 2}, [2, 3, "x"], [1, "y"])
  result = grammar.run(engine, task, Letters(), [], 0)
  assert (result["rejected"], result["accepted"], result["masks"]) == (1, 1, 9)
  refused = grammar.run(engine, task._replace(schema={"oneOf": []}),
                        Letters(), [], 0)
  assert refused["refused"] == "oneOf" and not grammar.passes(refused)
  tasks = [task, task._replace(name="b")]
  records = [{"engine": "x", "name": x.name, **record}
             for x, record in zip(tasks, (result, refused))]
  lines = grammar.table(records)
  assert lines[1][:8] == ["x", "2", "1", "0", "0.0", "1", "1", "1"]


def test_files_of_schemas(tmp_path):
  line = json.dumps({"schema": {"not": {"type": "null"}},
                     "tests": [{"data": 1, "valid": True},
                               {"data": None, "valid": False}]})
  path = tmp_path / "schemas.jsonl.gz"
  path.write_bytes(gzip.compress(f"{line}\n{line}\n".encode()))
  [task] = schema_tasks.read(str(path), 1)
  assert task == schema_tasks.SchemaTask(
      "1", json.loads(line)["schema"], [1], [None])
  path.write_bytes(gzip.compress(b'{"schema": {}}'))
  with pytest.raises(ValueError, match="line 1: an object with 'schema' and"):
    schema_tasks.read(str(path))


def test_errors_name_the_field():
  config = config_lib.get_config()
  config.engines = ("automata",)
  with pytest.raises(launch.UserError, match="engines='automata' is not one"):
    grammar.check(config)
