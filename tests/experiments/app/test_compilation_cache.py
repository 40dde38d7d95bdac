"""Compiled programs are kept, found again, and whole."""

import shutil

import jax
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
import pytest

from experiments.app import compilation_cache as compilation_cache_lib


@pytest.fixture(name="events")
def _events():
  """Names of what happens in JAX; afterwards nothing is kept any more."""
  names = []
  listener = lambda name, **_: names.append(name.rpartition("/")[2])
  jax.monitoring.register_event_listener(listener)
  yield names
  jax.monitoring.unregister_event_listener(listener)
  _start_anew()
  jax.config.update("jax_compilation_cache_dir", None)


def _start_anew():
  """As in a new process: nothing is compiled."""
  jax.clear_caches()
  compilation_cache.reset_cache()


def _compile(x):
  # Two programs of the same name; functions as they are in a new process.
  for scale in (2.0, 3.0):
    jax.jit(lambda x, scale=scale: scale * x).lower(x).compile()


def test_programs_are_found_again(events, tmp_path):
  x = jax.ShapeDtypeStruct((3,), jnp.float32)
  _start_anew()
  compilation_cache_lib.keep(tmp_path / "a")
  _compile(x)
  entries = sorted((tmp_path / "a").glob("*-cache"))
  assert len(entries) == 2 and "cache_hits" not in events
  # The folder may be moved.
  shutil.copytree(tmp_path / "a", tmp_path / "b")
  _start_anew()
  compilation_cache_lib.keep(tmp_path / "b")
  _compile(x)
  assert events.count("cache_hits") == 2
  assert len(list((tmp_path / "b").glob("*-cache"))) == 2

  # One entry is cut short, as by a kill; it is compiled and written anew.
  content = entries[0].read_bytes()
  for end in (0, 1, len(content) // 2, len(content) - 1):
    entries[0].write_bytes(content[:end])
    compilation_cache_lib.keep(tmp_path / "a")
    assert sorted((tmp_path / "a").glob("*-cache")) == entries[1:]
  del events[:]
  _start_anew()
  _compile(x)
  assert events.count("cache_hits") == 1
  assert sorted((tmp_path / "a").glob("*-cache")) == entries

  # Two have been swapped: JAX would run each in place of the other.
  compilation_cache_lib._record(tmp_path / "a", {})
  contents = [entry.read_bytes() for entry in entries]
  for entry, content in zip(entries, reversed(contents)):
    entry.write_bytes(content)
  compilation_cache_lib.keep(tmp_path / "a")
  assert not list((tmp_path / "a").glob("*-cache"))


def test_entries_that_are_no_files_end_nothing(events, tmp_path):
  """A folder, a dangling link, and one that cannot be removed."""
  (tmp_path / "jit_a-cache").mkdir()
  (tmp_path / "jit_b-cache").symlink_to(tmp_path / "nowhere")
  (tmp_path / "digests.json").mkdir()
  compilation_cache_lib.keep(tmp_path)
  compilation_cache_lib._record(tmp_path, {})
  assert len(list(tmp_path.glob("*-cache"))) == 2 and not events
