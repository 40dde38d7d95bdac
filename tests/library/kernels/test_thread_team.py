"""Programs that run at once on the threads of one pool."""

import subprocess

import pytest

from decoding_jax import kernels
from support import helpers

_SECONDS = 120


@pytest.mark.cases(1)
@pytest.mark.skipif(not kernels.available(),
                    reason="no C++ compiler, or no CPU")
@pytest.mark.parametrize("threads", [2, 8])
def test_threads_do_not_wait_for_one_another(threads):
  """In a process of its own, since what hangs hangs for ever."""
  script = helpers.REPOSITORY / "tests" / "support" / "on_threads.py"
  process = helpers.start(script, threads, 20)
  try:
    output, errors = process.communicate(timeout=_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    pytest.fail(f"it hangs: {process.communicate()}")
  assert process.returncode == 0, errors
  assert output.splitlines()[-1] == "the same"
