"""Tests of other engines: environments, and texts of those installed."""

import sys

import numpy as np
import pytest

from experiments import benchmark
from experiments.app import launch
from experiments.rivals import engine_exactness, engines

OWN = [name for name, engine in engines.ENGINES.items() if engine.requirements]


@pytest.fixture
def commands(monkeypatch, tmp_path):
  """Commands that would have been run, in a folder without environments."""
  ran = []

  def run(name, *command, **environment):
    ran.append(command)
    assert "GGML_NATIVE=OFF" in environment.get("CMAKE_ARGS", "GGML_NATIVE=OFF")
    if command[1] == "-m" and command[2] == "venv":
      (engines.FOLDER / name).mkdir(parents=True)

  monkeypatch.setattr(engines, "FOLDER", tmp_path / "rivals")
  monkeypatch.setattr(engines, "_run", run)
  return ran


@pytest.mark.parametrize("name", OWN)
def test_an_environment_is_made_once(commands, name):
  engine = engines.ENGINES[name]
  assert engines.missing(name) == list(engine.packages)
  folder = engines.prepare(name)
  assert folder == engines.FOLDER / name
  venv, install, *removal = commands
  assert venv == (sys.executable, "-m", "venv", str(folder))
  assert install[0] == engines.python(name)
  assert set(engine.requirements) <= set(install)
  assert all("==" in x for x in engine.requirements)
  assert [x[-len(engine.removed):] for x in removal] == [
      engine.removed] * bool(engine.removed)
  assert ("--no-binary" in install) == engine.built
  assert engines.missing(name) == []
  before = len(commands)
  engines.prepare(name)
  assert len(commands) == before
  assert f"--prepare={name}" in engine.hint


def test_other_versions_are_installed_anew(commands, monkeypatch):
  name = OWN[0]
  engines.prepare(name)
  newer = engines.ENGINES[name]._replace(requirements=("package==99",))
  monkeypatch.setitem(engines.ENGINES, name, newer)
  assert engines.missing(name)
  engines.prepare(name)
  assert commands[-1][-1] == "package==99"
  assert engines.versions(name).startswith("package 99")


def test_an_engine_is_built_for_the_cpu(commands, monkeypatch):
  [name] = [x for x in OWN if engines.ENGINES[x].built]
  engines.prepare(name)
  monkeypatch.setitem(engines._CMAKE, "", "-DGGML_NATIVE=OFF -DOTHER=ON")
  assert engines.missing(name)
  engines.prepare(name)
  assert engines.versions(name).endswith("built for this machine")
  assert not engines.missing(name)


def test_one_that_cannot_be_installed_keeps_no_other(commands, monkeypatch,
                                                     capsys):
  run = engines._run

  def fail(name, *command, **environment):
    if name == OWN[0]:
      raise ValueError(f"{name} cannot be installed: no wheel")
    run(name, *command, **environment)

  monkeypatch.setattr(engines, "_run", fail)
  with pytest.raises(launch.UserError, match="cannot be installed: no wheel"):
    benchmark.prepare(OWN[:2], None)
  assert f"{engines.FOLDER / OWN[1]}: " in capsys.readouterr().out
  with pytest.raises(launch.UserError, match="--prepare='ollama' is not one"):
    benchmark.prepare(["ollama"], None)
  with pytest.raises(ValueError, match="no environment of its own"):
    engines.prepare("transformers")
  assert engines.missing(OWN[0])


def test_a_failed_command_gives_its_reason():
  with pytest.raises(ValueError, match="^it cannot be installed: ERROR: why$"):
    engines._run("it", sys.executable, "-c",
                 "import sys; sys.exit('ERROR: why')")


@pytest.mark.parametrize("name", OWN)
def test_greedy_texts_are_ours(name, tmp_path):
  """And samples never have tokens of no probability, by few texts."""
  if engines.missing(name):
    pytest.skip(f"needs {engines.ENGINES[name].hint}")
  [plain, *_] = engine_exactness.test(name, texts=20, length=60)
  assert not plain.error
  assert plain.same[0] == plain.same[1]
  assert plain.p_value > 1e-5
  assert np.isfinite(plain.control)
