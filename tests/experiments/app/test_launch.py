"""Tests of `app.launch` and `harness.store`."""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import ml_collections
import pytest

from experiments.app import launch, multihost, own_code
from experiments.harness import store as results_store

_ROOT = pathlib.Path(__file__).parents[3]
# Command line -> what its one line of error must say.
_MISTAKES = {
    "rsd --no_such_flag=1": "Unknown command line flag 'no_such_flag'",
    "rsd --config=nowhere/rsd.py": "--config=nowhere/rsd.py: there is no such",
    "rsd --config=configs/rsd.py --config.promts=3": "did you mean 'prompts'?",
    "train --config=train:draft --workdir=x": "but --config.workdir.",
    "rsd --config.prompts=many": "--config.prompts=many",
    "rsd --config=configs/train.py": "has no field 'balanced': a config of",
    "rsd --config.temperatures=('a',)": "temperatures[0]='a': a number is",
    "rsd --config.lengths=(1.5,)": "lengths=(1.5,): integers are needed.",
    "train --config=train:smoke --config.sample_rows=9": "=9 has no effect",
    "generate --wait=x": "--wait='x' needs --think_at_least or",
    "generate --method=ppd": "needs a target with trained prompt tokens",
    "complete --prefill_chunk=3": "needs a --queue of more than --batch=8.",
    "rsd --config.trees.length.2=[]": "as in --config.trees.length['2'][0].",
    "rsd --config.temperatures[5]=1": "temperatures[5]=1: no such part of the",
    "rsd --config.batch.x=3": "--config.batch.x=3: no such part of the config",
    "rsd --config=rsd:smoke --config.tasks.no.ends=1": "no such part of the",
    "rsd --config=rsd:huge": "preset 'huge' is not one of",
    "generate --coordinator=there --num_processes=1": "--coordinator=there: ad",
    "rsd leftover": "unexpected argument 'leftover'",
    "generate --method=rsd_s --width=3": "sizes of a method are part of it",
    "generate --max_tokens=3": "no flag --max_tokens, but --max_new_tokens.",
    "generate --draft=python-drft": "Did you mean python-draft",
    "generate --target=nowhere": "model 'nowhere' is neither a folder nor one",
    "generate --prompt=\udcff": "half of a surrogate pair",
    "rsd --config.temperatures=(1,1e999)": "temperatures[1]=inf: a finite num",
    "generate --seed=4294967296": "in the range [0, 4294967295]",
    "rsd --config.seed=4294967296": "config.seed=4294967296: 0 to 4294967295",
    "exactness --length=1000": "these are 6**1000 texts, at most 1e+07 are",
    "exactness --rows=1000000000000": "is not an integer in the range [1, 10",
    "convert": "--hf= and --to_hf= and --table=: one of them is needed",
    "convert --hf=nowhere --out=tests": "--out=tests exists already",
}


@pytest.mark.parametrize("line", _MISTAKES)
def test_mistakes_are_one_line_and_status_2(python, line):
  program, *arguments = line.split()
  got = python("-m", f"experiments.{program}", *arguments)
  assert (got.status, got.output) == (2, ""), got.errors
  assert len(got.errors.splitlines()) == 1, got.errors
  assert got.errors.startswith(f"{program}: error: ")
  assert _MISTAKES[line] in got.errors


def test_programs_are_listed_in_a_line_each(python):
  lines = python("-m", "experiments").output.splitlines()
  assert "python -m experiments.generate      Completes a prompt" in [
      line[:54] for line in lines]
  assert len(lines) == len({line.split()[2] for line in lines}) <= 13


def test_help(python):
  def shown(program, flag="--help"):
    got = python("-m", f"experiments.{program}", flag)
    assert (got.status, got.errors) == (0, "")
    return got.output

  # Of all modules, where absl knows but those that a main has defined itself.
  flags = set(re.findall(r"^  --(?:\[no\])?(\w+):", shown("generate"), re.M))
  assert {"method", "prompt", "chat", "system", "stream", "regex",
          "json_schema", "stop", "repetition_penalty", "no_repeat_ngram_size",
          "mesh"} <= flags
  assert "verbosity" not in flags
  assert ("--config: Settings: file, file:preset, or the name of a"
          in shown("train"))
  # Help does not need the flag that is required.
  assert "--verbosity" in shown("estimate", "--helpfull")


def test_help_may_be_cut_off(monkeypatch):
  """As by `head`: no error. Other ends of the parser keep their status."""
  ends = []
  monkeypatch.setattr(multihost, "end", lambda status, **_: ends.append(status))
  monkeypatch.setattr(os, "dup2", lambda *_: None)
  with launch._until_reader_leaves():
    raise BrokenPipeError
  assert ends == [128 + signal.SIGPIPE]
  for status in 0, 2:
    with pytest.raises(SystemExit) as error, launch._help():
      sys.exit(status)
    assert (error.value.code or 0) == status


def test_a_helper_module_says_that_it_is_no_program():
  got = subprocess.run(
      [sys.executable, "-m", "experiments.evaluation.run"], cwd=_ROOT,
      text=True, capture_output=True, check=False)
  assert got.returncode == 2
  assert got.stderr.startswith("experiments.evaluation.run is not a program;")
  assert len(got.stderr.splitlines()) == 1


@pytest.mark.parametrize("value, where", [
    (math.nan, "=nan: a finite number"), (10**13, f"={10**13}: an integer"),
    ({"a": [1, (0.5, -math.inf)]}, ".a[1][1]=-inf: a finite number"),
    ({"a": [1, -1e30, "nan", None, True]}, "")])
def test_numbers_that_nothing_can_use(value, where):
  if not where:
    return launch._check_numbers("--x", value)
  with pytest.raises(launch.UserError, match=re.escape(f"--x{where}")):
    launch._check_numbers("--x", value)


def test_numbers_of_a_config_file():
  config = ml_collections.ConfigDict({"training": {"learning_rate": math.inf},
                                      "prompts": 0, "batch": 1})
  with pytest.raises(launch.UserError, match="--config.training.learning_rate"):
    launch.config(types.SimpleNamespace(value=config))
  launch.check_positive(config, "batch")
  with pytest.raises(launch.UserError, match="prompts=0: at least 1"):
    launch.check_positive(config, "batch", "prompts")


@pytest.mark.parametrize("lines, message", [
    ("def get_config(): return None", "ml_collections.ConfigDict, not a None"),
    ("def get_config(): return [1]", "a ml_collections.ConfigDict, not a list"),
    ("x = 1", "own.py: module 'config_config' has no attribute 'get_config': "
     "a function that"),
    ("def get_config(a, b): return a", "own.py: get_config() missing 2 req"),
    ("def get_config(:", "own.py, line 1: SyntaxError: invalid syntax"),
    ("\nimport no_such_module", "own.py, line 2: ModuleNotFoundError: No mod"),
    ("def get_config():\n  return {}['a']", "own.py, line 2: KeyError: 'a'"),
    ("def get_config():\n  raise ValueError(3)", "line 2: ValueError: 3"),
    ("def get_config():\n  open('/no/file')", "line 2: FileNotFoundError"),
    ("import ml_collections\ndef get_config():\n"
     "  return ml_collections.ConfigDict().x", "line 3: AttributeError"),
    ("from configs import rsd\ndef get_config():\n"
     "  c = rsd.get_config()\n  del c.prompts\n  return c",
     "--config has no field 'prompts': a config of this experiment")])
def test_files_that_are_no_configs(python, tmp_path, lines, message):
  (tmp_path / "own.py").write_text(lines + "\n")
  got = python("-m", "experiments.rsd", f"--config={tmp_path / 'own.py'}")
  assert got.status == 2 and "Traceback" not in got.errors
  assert message in got.errors.splitlines()[-1]


def test_a_bucket_is_no_folder(python):
  got = python("-m", "experiments.rsd", "--workdir=gs://bucket/run")
  assert got.status == 2 and got.errors.startswith(
      "rsd: error: --workdir=gs://bucket/run: a folder is needed;")


def test_user_errors_converts_only_what_is_named():
  def raising(error):
    raise error

  for wanted, message, call in (
      (launch.UserError, "told", lambda: raising(ValueError("told"))),
      (KeyError, "a bug", lambda: raising(KeyError("a bug"))),
      (launch.UserError, "nested too deeply for Python's",
       lambda: json.loads("[" * 100_000))):
    with pytest.raises(wanted, match=message):
      with launch.user_errors(ValueError):
        call()


@pytest.mark.parametrize("statement, status, errors", [
    ("logging.getLogger('decoding_jax.x').warning('Told.')", 0, "Told.\n"),
    ("raise KeyboardInterrupt", 130,
     "\ninterrupted; results written before are kept.\n"),
    ("raise BrokenPipeError", 128 + signal.SIGPIPE, ""),
    ("raise ValueError('a bug')", 1, "Traceback.*\n.*\n"),
    ("raise OSError(errno.ENOENT, 'a bug')", 1, "Traceback.*\n.*\n"),
    ("raise OSError(errno.ENOSPC, 'No space')", 1,
     "[^\n]*No space; results written[^\n]*\n"),
    ("raise ValueError('x: [ENOSPC No space left on device]')", 1,
     "[^\n]*a file could not be written: No space left on device; results "
     "written[^\n]*\n")])
def test_a_bug_keeps_its_traceback_and_other_ends_are_a_line(
    python, statement, status, errors):
  got = python("-c", "import errno, logging\n"
               "from experiments.app import launch\n"
               f"def main(): {statement}\n"
               "launch.run(main)")
  assert got.status == status
  assert re.fullmatch(errors, got.errors, re.S), got.errors


def test_results_survive_a_torn_last_line(tmp_path):
  path = tmp_path / "results.jsonl"
  assert results_store.read(path) == []
  results_store.append(path, {"cell": 1})
  results_store.append(path, {"cell": 2})
  with open(path, "a") as f:
    f.write('{"cell": 3, "emi')
  assert results_store.read(path) == [{"cell": 1}, {"cell": 2}]
  results_store.append(path, {"cell": 3})
  assert results_store.read(path) == [{"cell": 1}, {"cell": 2}, {"cell": 3}]
  # From the start.
  path.write_text('{"ce')
  assert results_store.read(path) == []
  assert path.read_text() == ""


@pytest.mark.parametrize("line, message", [
    ("nonsense", "line 2 is not JSON"), ("[" * 100_000, "line 2 is not JSON"),
    ("5", "line 2 is no result.*'cell'"), ("[]", "line 2 is no result"),
    ('{"other": 1}', "line 2 is no result")], ids=range(5))
def test_results_name_the_line_that_is_wrong(tmp_path, line, message):
  path = tmp_path / "results.jsonl"
  path.write_text(f'{{"cell": 1}}\n{line}\n{{"cell": 2}}\n')
  with pytest.raises(launch.UserError, match=message):
    results_store.read(path, "cell")


@pytest.mark.parametrize("text", ["[]", '{"settings": 5, "starts": []}', "{}"])
def test_workdir_of_another_program_is_refused(tmp_path, text):
  (tmp_path / results_store.RUN).write_text(text)
  with pytest.raises(launch.UserError, match="another program|a JSON object"):
    results_store.open_workdir(tmp_path, {})


def test_workdir_is_of_one_process_at_a_time(tmp_path):
  code = ("import fcntl, sys; file = open(sys.argv[1], 'w'); "
          "fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); "
          "sys.stdin.read()")
  with subprocess.Popen(
      [sys.executable, "-c", code, tmp_path / results_store.LOCK], text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    assert other.stdout.readline() == "held\n"
    with pytest.raises(launch.UserError, match="another process is at work"):
      results_store.open_workdir(tmp_path, {})
    other.stdin.close()
  results_store.open_workdir(tmp_path, {})
  results_store.open_workdir(tmp_path, {})


def test_workdir_records_settings_and_every_start(tmp_path, monkeypatch):
  monkeypatch.setattr(own_code, "DIGESTS", {})  # Of other tests' modules.
  settings = {"prompts": 3, "trees": {"length": {"2": [[2, 2]]}}}
  folder = results_store.open_workdir(tmp_path / "a" / "b", settings)
  results_store.open_workdir(folder, settings)
  record = json.loads((folder / results_store.RUN).read_text())
  assert record["settings"] == settings
  assert len(record["starts"]) == 2
  assert {"commit", "python", "devices", "versions", "time"} <= set(
      record["starts"][0])


@pytest.mark.parametrize("name", ["rsd", "rsd.py", "configs/rsd.py"])
def test_configs_have_names_outside_of_the_clone(python, name, tmp_path):
  got = python("-c", "from experiments.app import launch\n"
               "config = launch.define_config('rsd', '')\n"
               "launch.run(lambda: print(launch.config(config).prompts))",
               f"--config={name}:smoke", "--config.prompts=17", folder=tmp_path)
  assert got.output == "17\n", got.errors


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shipped = launch._installed("rsd.py:smoke")
  assert shipped == f"{launch.CONFIGS / 'rsd.py'}:smoke"
  (tmp_path / "rsd.py").touch()
  for value in ("rsd.py:smoke", "elsewhere/rsd.py", "no_such_file", ""):
    assert launch._installed(value) == value


@pytest.mark.parametrize("lose", [
    lambda path: path.unlink(), lambda path: path.write_text('{"starts": []}')],
                         ids=["no run.json", "no settings"])
def test_results_of_unknown_settings_are_refused(tmp_path, lose):
  results_store.open_workdir(tmp_path, {"seed": 1})
  results_store.append(tmp_path / results_store.RESULTS, {"cell": 1})
  lose(tmp_path / results_store.RUN)
  with pytest.raises(launch.UserError, match="cannot be used: .*run.json"):
    results_store.open_workdir(tmp_path, {"seed": 2})
  assert results_store.read(tmp_path / results_store.RESULTS) == [{"cell": 1}]


def test_a_folder_may_hold_other_files(tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  (tmp_path / "checkpoints").mkdir()
  (tmp_path / results_store.RESULTS).touch()
  results_store.open_workdir(tmp_path, {}, results=("checkpoints",
                                                    results_store.RESULTS))


@pytest.mark.parametrize("changes, message", [
    ({"kernels": "xla"}, "timings with kernels='native'; here it is 'xla'"),
    ({"cpus": 3}, "timings with cpus=2; here it is 3"),
    ({"devices": ["cpu"] * 2}, r"devices=\['cpu'\]; here it is \['cpu', 'cpu'"),
    ({"versions": {"jax": "0.11"}}, "versions.jax='0.10'; here it is '0.11'")],
                         ids=str)
def test_timings_of_two_environments_do_not_mix(tmp_path, monkeypatch, changes,
                                                message):
  here = {"python": "3.11", "cpus": 2, "kernels": "native", "devices": ["cpu"],
          "versions": {"jax": "0.10"}, "time": "now"}
  start = lambda **kwargs: results_store.open_workdir(tmp_path, {}, **kwargs)
  monkeypatch.setattr(results_store, "environment", lambda: dict(here))
  start(timed=True)
  here.update(time="later")
  start(timed=True)
  before = dict(here)
  # No result has been written: there is nothing to mix with.
  here.update(changes)
  start(timed=True)
  here.update(before)
  start(timed=True)
  results_store.append(tmp_path / results_store.RESULTS, {"cell": 1})
  here.update(changes)
  with pytest.raises(launch.UserError, match=f"{message}.* another --workdir"):
    start(timed=True)
  # Texts do not depend on it.
  start()


def test_workdir_of_other_settings_is_refused(tmp_path):
  first = {"a": {"b": 1, "c": 2}, "z": 3, "lengths": [2]}
  results_store.open_workdir(tmp_path, first)
  before = (tmp_path / results_store.RUN).read_text()
  for settings, message, options in (
      ({**first, "a": {"b": 1, "c": 5}}, r"a\.c=2, not of 5", {}),
      ({"z": 4}, "another --config.workdir", {"flag": "--config.workdir"}),
      ({**first, "z": 4, "lengths": [3]}, "z=3, not of 4",
       {"free": ["lengths"]})):
    with pytest.raises(launch.UserError, match=message):
      results_store.open_workdir(tmp_path, settings, **options)
  assert (tmp_path / results_store.RUN).read_text() == before
  results_store.open_workdir(tmp_path, {**first, "lengths": [3]},
                             free=["lengths"])


def test_workdir_that_cannot_be_is_a_user_error(tmp_path):
  (tmp_path / "file").write_text("")
  for name, text in (("half", "{"), ("deep", "[" * 100_000)):
    (tmp_path / name).mkdir()
    (tmp_path / name / results_store.RUN).write_text(text)
  (tmp_path / "run" / "run.partial").mkdir(parents=True)
  for folder, message in (
      (tmp_path / "file", "--workdir=.*file cannot be used"),
      (tmp_path / "half", "--workdir=.* cannot be used"),
      (tmp_path / "deep", "--workdir=.* cannot be used"),
      (tmp_path / "run", "directory: '.*run.partial'"),
      ("", "--workdir is empty")):
    with pytest.raises(launch.UserError, match=message):
      results_store.open_workdir(folder, {})
