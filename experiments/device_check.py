"""Checks a device that is new: how fast it is, and whether its texts are right.

  python -m experiments.device_check

Prints how fast it reads and multiplies; whether greedy float32 texts of the
shipped pair equal the CPU's; and the seconds of forwards of a Llama 2 7B with
random parameters by rows and tokens: how dear the nodes of a tree are. Needs a
device of 24 GB and no download; `--smoke` takes a tiny model, on any machine,
and `--target=<model>` with `--dtype` and `--weights` a model of yours.
The exit status is 2 if texts differ. `experiments.exactness` tests whether
each method keeps the distribution there, `configs/benchmark.py:gpu` measures
rates.
"""

import dataclasses

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax import kernels
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from experiments.devices import model_pair
from experiments.timing import forward_cost
from experiments.timing import roofline
from models import checkpoints
from models import transformer
from models.transformer import quantization

# The pair that comes along, and what decodes greedily on CPU and device.
_SHIPPED = ("python-target", "python-draft")
_GREEDY = ("autoregressive", "speculative(3, traversal)", "rsd_s(2, 3)")
_DTYPE, _LIVE = "bfloat16", 128
_LARGE = transformer.Config(
    vocab_size=32000, dim=4096, num_layers=32, num_heads=32, num_kv_heads=32,
    head_dim=128, hidden_dim=11008, tie_embeddings=False, dtype=_DTYPE,
    max_length=2048)
_TINY = dataclasses.replace(
    _LARGE, vocab_size=256, dim=64, num_layers=2, num_heads=2, num_kv_heads=2,
    head_dim=32, hidden_dim=128)
_ROWS, _TOKENS = (1, 16), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_CPU_SIZES = 7


def main():
  timed = model()  # First: a target that cannot be read shows at once.
  rates = roofline.measure((_DTYPE,))
  print(device(rates), flush=True)
  differing = {x: differing_texts(x) for x in _GREEDY}
  print("\n".join(f"greedy texts of {name}: {count} of 8 differ from the CPU's"
                  for name, count in differing.items()), flush=True)
  rows, tokens = ((1, 2), (1, 4)) if SMOKE.value else (_ROWS, _TOKENS)
  if TARGET.value and kernels.is_cpu(jax.devices()[0]):
    rows, tokens = _ROWS[:1], _TOKENS[:_CPU_SIZES]
  print(text_tables.plain_table(forwards(timed, rates, rows, tokens)))
  if any(differing.values()):
    raise launch.UserError("greedy texts differ from the CPU's.")


def device(rates) -> str:
  """Describes the device, and how fast it reads and multiplies."""
  first = jax.devices()[0]
  size = (first.memory_stats() or {}).get("bytes_limit")
  memory = f"{size / 2**30:.1f} GiB" if size else "memory unknown"
  return f"{jax.device_count()} x {first.device_kind}, {memory}; {rates}"


def differing_texts(spec) -> int:
  """Returns how many of 8 greedy float32 texts differ from the CPU's."""
  folders = tuple(map(str, map(launch.model_folder, _SHIPPED)))
  pair = model_pair.with_params(
      model_pair.open_pair(*folders, dtype="float32"))
  prompts = np.random.default_rng(0).integers(
      pair.target.vocab_size, size=(8, 16), dtype=np.int32)

  def texts(where):
    with jax.default_device(where):
      params = jax.device_put((pair.target_params, pair.draft_params), where)
      out = dj.generate(
          jax.random.key(0), jnp.asarray(prompts), jnp.full(8, 16, jnp.int32),
          method=method_specs.read(spec), target=pair.target, draft=pair.draft,
          target_params=params[0], draft_params=params[1], max_new_tokens=64,
          sampling=dj.Sampling(temperature=0.0))
      return np.asarray(out.tokens)

  first, other = map(texts, (jax.devices("cpu")[0], jax.devices()[0]))
  return int((first != other).any(axis=1).sum())


def model():
  """Returns the architecture whose forwards are timed, and its parameters."""
  if TARGET.value:
    with launch.user_errors(FileNotFoundError, ValueError):
      config = checkpoints.architecture(TARGET.value)
      _, params = checkpoints.load(TARGET.value, scan_layers=False,
                                   dtype=DTYPE.value, weights=WEIGHTS.value)
    return dataclasses.replace(config, scan_layers=False, dtype=DTYPE.value,
                               weights=WEIGHTS.value), params
  config = _TINY if SMOKE.value else _LARGE
  return config, transformer.init(jax.random.key(0), config)


def forwards(timed, rates, rows, tokens):
  """Returns the lines of a table of a model's forwards by rows and tokens."""
  config, params = timed
  lm = transformer.language_model(config)
  read = roofline.weight_bytes(config, params) / rates.bandwidth
  lines = [["rows", "tokens a row", "ms", "of a token", "share of bandwidth"]]
  for count in rows:
    seconds = forward_cost.measure(lm, params, count, _LIVE,
                                   _LIVE + max(tokens), tokens)
    lines += [[str(count), str(n), f"{1e3 * x:.3f}", f"{x / seconds[0]:.2f}",
               f"{read / x:.0%}"] for n, x in zip(tokens, seconds)]
  return lines


if __name__ == "__main__":
  SMOKE = flags.DEFINE_bool("smoke", False, "Time forwards of a tiny model.")
  TARGET = flags.DEFINE_string(
      "target", None, "Time forwards of this model: a folder, a GGUF file, "
      "'package:name' or a shipped model.")
  DTYPE = flags.DEFINE_enum("dtype", _DTYPE, ["float32", "bfloat16"],
                            "Of its activations.")
  WEIGHTS = flags.DEFINE_enum("weights", quantization.DTYPE,
                              quantization.WEIGHTS, "Of its matrices.")
  launch.run(main)
