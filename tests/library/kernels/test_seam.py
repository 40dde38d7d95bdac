"""Native kernels have one door, and refuse what they do not know."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels
from decoding_jax.kernels import dispatch

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
KERNELS = pathlib.Path("decoding_jax/kernels")
DISPATCH = KERNELS / "dispatch.py"
# Names that nobody outside of the folder uses, and of the file.
OF_KERNELS = {"bindings", "platform_dependent"}
OF_DISPATCH = {"platform_dependent", "custom_jvp", "custom_vjp"}
# Where the string "cpu" would choose among implementations. Elsewhere torch has
# devices of that name, and machines have memory that devices have not.
PLATFORM_FREE = ("decoding_jax", "models/transformer")


def _files(*folders):
  return [path.relative_to(REPOSITORY) for folder in folders
          for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def _faults(path, source):
  """Returns names and strings in a source that do not belong there."""
  is_kernel = KERNELS in path.parents
  wrong = set() if is_kernel else set(OF_KERNELS)
  if path != DISPATCH:
    wrong |= OF_DISPATCH
  platforms = not is_kernel and any(
      path.is_relative_to(folder) for folder in PLATFORM_FREE)
  results = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Name):
      results.add(node.id)
    elif isinstance(node, ast.Attribute):
      results.add(node.attr)
    elif isinstance(node, ast.alias):
      results.update(node.name.split("."))
    elif isinstance(node, ast.Constant) and platforms and node.value == "cpu":
      return {"cpu"}
  return results & wrong


def test_nobody_else_chooses_kernels():
  files = _files("decoding_jax", "models", "experiments", "configs")
  found = {str(path): _faults(path, (REPOSITORY / path).read_text("utf-8"))
           for path in files}
  assert len(found) > 200
  assert not {path: faults for path, faults in found.items() if faults}


@pytest.mark.parametrize("path, source, fault", [
    ("models/transformer/new.py",
     "from decoding_jax.kernels.cpu import bindings", "bindings"),
    ("experiments/new.py", "import decoding_jax.kernels.cpu.bindings as x",
     "bindings"),
    ("decoding_jax/new.py", "jax.lax.platform_dependent(x, default=f)",
     "platform_dependent"),
    ("decoding_jax/kernels/new.py", "jax.lax.platform_dependent(x, default=f)",
     "platform_dependent"),
    ("decoding_jax/kernels/new.py", "@jax.custom_jvp\ndef f(x): pass",
     "custom_jvp"),
    ("decoding_jax/new.py", "jax.default_backend() == 'cpu'", "cpu")])
def test_control_other_choices_are_seen(path, source, fault):
  assert _faults(pathlib.Path(path), source) == {fault}


def test_all_names_are_there_and_described():
  for name in kernels.__all__:
    assert getattr(kernels, name).__doc__, name


@pytest.fixture(name="doubled")
def _doubled():
  """An operation whose kernel, unlike a kernel, shows: 2 x instead of x."""
  def reference(x, *, offset=0.0, factor=1.0):
    return factor * x + offset

  def kernel(x, *, offset=0.0):
    return 2 * x + offset

  return dispatch.on_cpu(reference, kernel,
                         fits=lambda x, **_: x.dtype == jnp.float32)


def test_a_cpu_runs_the_kernel_but_for_arguments_that_it_does_not_know(doubled):
  assert doubled(jnp.float32(3)) == 6
  assert jax.jit(doubled)(jnp.float32(3)) == 6
  assert doubled(jnp.float32(3), offset=1.0) == 7
  assert doubled(jnp.float32(3), factor=10.0) == 30
  assert doubled(jnp.int32(3)) == 3


def test_other_platforms_run_the_reference(doubled):
  traced = jax.jit(doubled).trace(jnp.float32(3))
  texts = {platform: traced.lower(lowering_platforms=(platform,)).as_text()
           for platform in ("cpu", "tpu", "cuda")}
  # Two is the kernel's factor.
  assert "2.0" in texts["cpu"]
  assert "2.0" not in texts["tpu"] + texts["cuda"]


def test_derivatives_are_those_of_the_reference(doubled):
  assert jax.grad(doubled)(jnp.float32(3)) == 1
  value, slope = jax.jvp(doubled, (jnp.float32(3),), (jnp.float32(1),))
  assert (value, slope) == (3, 1)


def test_a_new_argument_of_attention_takes_effect(monkeypatch):
  """One that is added to the reference alone: attention to a sink."""
  from decoding_jax.kernels import dot_product_attention as module
  with_sink = lambda q, parts, *, cap, sink=0.0: (
      sink * module._reference(q, parts, cap=cap)[0], None)
  attention = dispatch.on_cpu(
      with_sink, module.bindings.attention,
      fits=lambda *_, **__: module.bindings.available())
  q = jnp.ones((1, 1, 1, 1, 4))
  parts = ((jnp.ones((1, 1, 4, 3)), jnp.ones((1, 1, 3, 4)),
            jnp.ones((1, 1, 3), bool)),)
  np.testing.assert_allclose(attention(q, parts, cap=0.0, sink=3.0)[0], 3.0)
  if kernels.available():
    np.testing.assert_allclose(attention(q, parts, cap=0.0)[0], 1.0)


@pytest.mark.parametrize("value, native", [("xla", False), ("native", True)])
def test_the_switch(value, native, monkeypatch):
  if not kernels.available():
    pytest.skip("no C++ compiler, or no CPU")
  monkeypatch.setenv("DECODING_JAX_KERNELS", value)
  program = jax.make_jaxpr(lambda x: kernels.matmul(x, x))(jnp.ones((3, 4)))
  assert ("decoding_jax_products_" in str(program)) == native
