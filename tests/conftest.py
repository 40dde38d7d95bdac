"""Fixtures of several files."""

import gc
import json
import os
import pathlib
import subprocess
import sys
import types

from absl import flags
import jax
import pytest

from decoding_jax import programs
import decoding_jax as dj
from experiments.app import preemption
from experiments.data import python_corpus
from models import checkpoints, transformer
from models.text import tokenizers
from support import tiny_models as tiny

TESTS = pathlib.Path(__file__).parent
# The core: trees, drafters, verifiers, joint distributions, the README.
QUICK = ("library/speculation/test_tree.", "library/speculation/test_verifiers",
         "library/speculation/test_expanders",
         "library/speculation/test_traversal",
         "library/speculation/drafters/test_best_first",
         "library/test_distribution.py", "library/test_sampling.py",
         "library/test_generate.py", "test_floors.py", "test_readme.py")

# No array gets axes unseen: here, and in the processes that tests start.
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# Compilation is most of what tests do, so most optimisations are left out, here
# and in the processes that tests start. Programs of `test_distribution` have
# them, and JAX_DISABLE_MOST_OPTIMIZATIONS=0 has all tests compile with them.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
jax.config.update("jax_disable_most_optimizations",
                  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] != "0")

# What emits fused kernels takes two thirds of a compilation; JAX 0.10 still has
# what emitted them before. XLA reads this when it first compiles; a process of
# `test_distribution` does without. XLA_FLAGS=--xla_cpu_use_fusion_emitters=true
# has all tests compile as users do.
if "fusion_emitters" not in os.environ.get("XLA_FLAGS", "") and (
    jax.__version_info__ < (0, 11)):
  os.environ["XLA_FLAGS"] = (f"{os.environ.get('XLA_FLAGS', '')} "
                             "--xla_cpu_use_fusion_emitters=false")


def pytest_make_parametrize_id(val):
  """Names functions and methods: their addresses differ between workers."""
  if isinstance(val, dj.Method):
    return val.name
  return val.__name__ if hasattr(val, "__name__") else None


def pytest_collection_modifyitems(items):
  """Marks what is long, and the core.

  Of a test with the marker `cases(n)` n cases run by default, spread over all,
  and the others are long.
  """
  cases = {}
  for item in items:
    if item.get_closest_marker("cases"):
      cases.setdefault((item.path, item.originalname), []).append(item)
  for members in cases.values():
    count = members[0].get_closest_marker("cases").args[0]
    chosen = {i * len(members) // count for i in range(count)}
    for i, item in enumerate(members):
      if i not in chosen:
        item.add_marker(pytest.mark.long)
  for item in items:
    path = item.path.relative_to(TESTS).as_posix()
    if path.startswith(QUICK) and not item.get_closest_marker("long"):
      item.add_marker(pytest.mark.quick)


def pytest_collection_finish():
  """Garbage is collected less often: else it takes a seventh of the time.

  Of what tracing leaves after there is little, and of what is imported none.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
  """Folders of an untrained target and draft."""
  base = tmp_path_factory.mktemp("pair")
  texts = [
      text for _, text in python_corpus.modules(python_corpus.HELD_OUT)[:2]
  ]
  tokenizer = tokenizers.train(texts, 270)
  for seed, name in enumerate(("target", "draft")):
    config = transformer.Config(
        vocab_size=270, dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=4, hidden_dim=8, max_length=32)
    params = tiny.init(jax.random.key(seed), config)
    checkpoints.save(base / name, config, params, tokenizer)
  return str(base / "target"), str(base / "draft")


@pytest.fixture(scope="session")
def python():
  """Runs Python in the repository: its exit status, output and errors.

  Each command is a fork of one process, in which no JAX computes.
  """
  paths = [TESTS.parent, TESTS, os.environ.get("PYTHONPATH", "")]
  with subprocess.Popen(
      [sys.executable, TESTS / "support" / "on_forks.py"], text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
      env={**os.environ, "JAX_PLATFORMS": "cpu",
           "PYTHONPATH": os.pathsep.join(map(str, paths))}) as process:

    def run(*arguments, folder=TESTS.parent, **variables):
      command = {"arguments": [*map(str, arguments)], "folder": str(folder),
                 "variables": variables}
      print(json.dumps(command), file=process.stdin, flush=True)
      status, output, errors = json.loads(process.stdout.readline())
      return types.SimpleNamespace(status=status, output=output, errors=errors)

    yield run


@pytest.fixture(scope="module", autouse=True)
def few_mappings():
  """Compiled programs are dropped before there are too many of them.

  Each is mapped into memory in several pieces, of which Linux by default allows
  a process 65,530; XLA dies when it gets no more. Until then what a module has
  left is not looked through for garbage again, which would take seconds.
  """
  yield
  if programs.num_mappings() > 25_000:
    gc.unfreeze()
    jax.clear_caches()
    gc.collect()
  gc.freeze()


@pytest.fixture
def parsed_flags():
  """Flags have their defaults, for the time of a test."""
  flags.FLAGS.mark_as_parsed()
  yield
  flags.FLAGS.unparse_flags()


@pytest.fixture
def listening(monkeypatch):
  """SIGTERM is listened to, for the time of a test."""
  monkeypatch.setitem(preemption._state, "asked", False)
  # On a busy machine a test may go on for longer than a program may: its
  # process, which has other tests to run, is not ended.
  monkeypatch.setattr(preemption, "PATIENCE", 3600.0)
  preemption.listen()
  yield
  preemption.forget()


@pytest.fixture(scope="module")
def optimised():
  """Programs of a module are compiled with all optimisations, as users' are."""
  before = jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", before)
