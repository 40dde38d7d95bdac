"""Tests of `experiments.device_check`."""

import jax.numpy as jnp
import numpy as np
import pytest

from configs import device_check
from experiments.benchmarking import device_checks, device_page
from support import tiny_models as tiny
from support.helpers import start

RECORDS = [
    {"check": "device", "kind": "GPU", "count": 2, "bytes": 2**30,
     "bandwidth": 2e9, "flops": {"float32": 1e12}},
    {"check": "greedy texts of rsd_s(2, 3)", "right": True},
    {"check": "forwards", "tokens": [1, 4], "seconds": [.5, 1.0],
     "weight_bytes": 5e8},
    {"check": "autoregressive, 2 rows", "rows": 2, "method": "autoregressive",
     "tokens": 20, "seconds": 2.0, "steps": 10, "compile_seconds": 3.0},
    {"check": "rsd_s(3x4), 2 rows", "rows": 2, "method": "rsd_s(3x4)",
     "tokens": 20, "seconds": 1.0, "steps": 4, "compile_seconds": 4.0},
]


def test_distributions_have_the_overlap():
  target, draft = map(np.exp, device_checks._tables(device_check.get_config()))
  assert np.minimum(target, draft).sum(axis=1).mean() == pytest.approx(
      0.7, abs=1e-3)
  assert target.sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_a_model_with_a_table_has_its_distributions():
  model = tiny.random_model(tiny.LLAMA)
  table = jnp.asarray(np.random.default_rng(0).normal(
      size=(64, tiny.LLAMA.vocab_size)), jnp.float32)
  model = model._replace(lm=device_checks._with_table(model.lm),
                         params=(model.params, table))
  result, _ = tiny.causal(model, tiny.PROMPTS)
  assert (result == table[tiny.PROMPTS]).all()


def test_pages_of_measurements_and_of_failures():
  page = device_page.markdown(RECORDS)
  assert "All 1 tests" in page
  assert "2 x GPU, 1.0 GiB; reads 2 GB/s" in page
  # Half a gigabyte takes a quarter of a second.
  assert "| 4 | 1000.000 | 2.00 | 25% |" in page
  assert "| 2 | rsd_s(3x4) | 20.0 | 2.00 | 2.50 | 250.00 | 4.0 |" in page
  failed = [{"check": x, "right": False, "error": "out of memory"}
            for x in ("device", "forwards", "profile")]
  page = device_page.markdown(failed + [
      {"check": "exactness of x, y", "right": False, "p": 1e-9}])
  assert "- forwards: out of memory" in page
  assert "- exactness of x, y: not right" in page


@pytest.mark.long
def test_all_checks_are_run_once(tmp_path):
  command = ("-m", "experiments.device_check", f"--workdir={tmp_path / 'run'}",
             "--config=configs/device_check.py:smoke")
  process = start(*command)
  output, errors = process.communicate()
  assert not process.returncode, errors[-3000:]
  assert "exactness of control: top-k for samples, control | 0 | yes" in output
  results = (tmp_path / "run" / "results.jsonl").read_text()
  process = start(*command)
  assert process.communicate()[0] == output
  assert (tmp_path / "run" / "results.jsonl").read_text() == results
