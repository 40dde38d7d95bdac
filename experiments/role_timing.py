"""Times drafting beside verifying against the same models in one program.

  python -m experiments.role_timing
  python -m experiments.role_timing --layers=1,5 --temperature=0

Target and drafts are those of `rivals.random_pair`: their distributions overlap
as `--overlap` says, whatever a draft costs. All methods decode the same prompt
in turn, in one process; on a CPU each device is a core, and no operation uses
more than one. Speeds are of the fastest round of each, so that what else the
machine does matters less.
"""

import os
import time

from absl import flags
import jax
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np

from decoding_jax import metrics
from decoding_jax import roles
import decoding_jax as dj
from experiments.app import launch
from experiments.app import text_tables
from experiments.rivals import random_pair
from models import transformer

_VOCAB, _CORE, _PERPLEXITY, _PROMPT, _HEAD = 1024, 32, 20.0, 32, 64
_HEADER = ("draft / target", "method", "tokens a call", "MAT", "prepared",
           "speed in one program", "on roles", "roles / one program")


def main():
  with launch.user_errors(ValueError):
    layers = [int(x) for x in LAYERS.value]
  if not all(0 < x <= TARGET_LAYERS.value for x in layers):
    raise launch.UserError(
        f"--layers={','.join(LAYERS.value)}: 1 to --target_layers="
        f"{TARGET_LAYERS.value} are allowed.")
  if DIM.value % _HEAD:
    raise launch.UserError(f"--dim={DIM.value}: a multiple of {_HEAD} is "
                           "needed.")
  # A core a device, for the products of XLA and for native kernels.
  os.environ["XLA_FLAGS"] = (f"{os.environ.get('XLA_FLAGS', '')} "
                             "--xla_cpu_multi_thread_eigen=false")
  os.environ.setdefault("DECODING_JAX_THREADS", "1")
  jax.config.update("jax_num_cpu_devices", 2)
  if jax.device_count() < 2:
    raise launch.UserError("one device: two are needed.")
  lines = [_HEADER]
  for count in layers:
    with launch.user_errors(ValueError):
      lines += table(*pair(count)[:2], ROUNDS.value)
  print(text_tables.markdown("", lines))


def pair(layers):
  """Returns target and draft of so many layers, see `random_pair.make`."""
  sizes = lambda count: dict(
      dim=DIM.value, num_layers=count, num_heads=DIM.value // _HEAD,
      num_kv_heads=DIM.value // _HEAD, head_dim=_HEAD,
      hidden_dim=3 * DIM.value)
  return random_pair.make(ml_collections.ConfigDict(dict(
      seed=0, overlap=OVERLAP.value, perplexity=_PERPLEXITY, core=_CORE,
      vocab_size=_VOCAB, max_length=512, dtype="float32",
      target=sizes(TARGET_LAYERS.value), draft=sizes(layers))))


def table(target, draft, rounds):
  """Times all methods with a pair.

  Args:
    target: a `transformer.Config` and parameters.
    draft: likewise.
    rounds: how often each method decodes.

  Returns:
    Rows of a table: speeds are those of autoregressive decoding.
  """
  plain, depth = dj.methods.autoregressive(), DEPTH.value
  runs = {"plain": in_one_program(plain, target),
          "draft": in_one_program(plain, draft)}
  tested = (dj.methods.speculative(depth), dj.methods.pearl(depth),
            dj.methods.ssd(depth, GUESSES.value))
  for method in tested:
    runs[method.name, 1] = in_one_program(method, target, draft)
    if method is not tested[0]:
      runs[method.name, 2] = on_roles(method, target, draft)
  outs = {name: run(jax.random.key(0)) for name, run in runs.items()}
  for method in tested[1:]:
    same = [np.asarray(outs[method.name, i].tokens) for i in (1, 2)]
    np.testing.assert_array_equal(*same, f"{method.name}: other texts on roles")
  print("Compiled; measuring.", flush=True)
  seconds = dict.fromkeys(runs, np.inf)
  for _ in range(rounds):
    for name, run in runs.items():
      begin = time.perf_counter()
      run(jax.random.key(0))
      seconds[name] = min(seconds[name], time.perf_counter() - begin)
  print("Measured.", flush=True)
  ratio = lambda a, b: f"{seconds[a] / seconds[b]:.2f}"
  rows = []
  for method in tested:
    stats, name = outs[method.name, 1].stats, method.name
    calls = stats.target_calls.sum()
    prepared = stats.extra.get("prepared_calls")
    both = (name, 2) in runs
    rows.append((
        ratio("draft", "plain"), name,
        f"{stats.emitted.sum() / calls:.2f}",
        f"{mean_accepted(stats):.2f}",
        "" if prepared is None else f"{prepared.sum() / calls:.0%}",
        ratio("plain", (name, 1)), ratio("plain", (name, 2)) if both else "",
        ratio((name, 1), (name, 2)) if both else ""))
  return rows


def mean_accepted(stats) -> float:
  """Returns mean accepted tokens of a `dj.Stats`."""
  return metrics.mean_accepted(stats.accepted_by_depth, stats.target_calls,
                               stats.extra.get("post_verify_calls", 0))


def _arguments(method, target, target_params, draft, draft_params):
  """Returns arguments of `dj.generate`: one random prompt."""
  prompt = np.random.default_rng(0).integers(_VOCAB, size=(1, _PROMPT))
  return dict(
      prompts=prompt.astype(np.int32),
      prompt_lengths=np.full(1, _PROMPT, np.int32), method=method,
      target=transformer.language_model(target), target_params=target_params,
      draft=draft and transformer.language_model(draft),
      draft_params=draft_params, max_new_tokens=NEW.value,
      sampling=dj.Sampling(TEMPERATURE.value))


def in_one_program(method, target, draft=(None, None)):
  """Returns `key -> Generation`, on the first device."""
  device = jax.devices()[0]
  mesh = jax.sharding.Mesh(np.array([device]), ("data",))
  params = jax.device_put((target[1], draft[1]), device)
  # As part of a mesh: else the compiler might split any array.
  program = jax.jit(jax.shard_map(
      lambda key, params: dj.generate(key, **_arguments(
          method, target[0], params[0], draft[0], params[1])),
      mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(),
      check_vma=False))
  return lambda key: jax.block_until_ready(program(key, params))


def on_roles(method, target, draft):
  """Returns `key -> Generation`, on the first two devices."""
  devices = jax.devices()[:2]
  mesh = jax.sharding.Mesh(np.array(devices), (roles.ROLE,))
  params = [jax.device_put(x[1], device)
            for x, device in zip((target, draft), devices)]
  arguments = _arguments(method, target[0], params[0], draft[0], params[1])
  return lambda key: jax.block_until_ready(roles.generate(
      key, mesh=mesh, **arguments))


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  LAYERS = flags.DEFINE_list("layers", ["1", "2", "5"],
                             "Layers of the drafts.")
  TARGET_LAYERS = flags.DEFINE_integer("target_layers", 16,
                                       "Layers of the target.", lower_bound=1)
  DIM = flags.DEFINE_integer("dim", 768, "Channels of all models.",
                             lower_bound=_HEAD)
  DEPTH = flags.DEFINE_integer("depth", 4, "Drafted tokens of a round.",
                               lower_bound=2)
  GUESSES = flags.DEFINE_integer("guesses", 2, "Of ssd, see there.",
                                 lower_bound=1)
  OVERLAP = flags.DEFINE_float("overlap", 0.8, "Of the distributions, E sum "
                               "min(t, d).", lower_bound=0, upper_bound=1)
  TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0 is greedy.",
                                   lower_bound=0)
  NEW = flags.DEFINE_integer("max_new_tokens", 48, "Tokens of a text.",
                             lower_bound=1, upper_bound=256)
  ROUNDS = flags.DEFINE_integer("rounds", 15, "Measurements of each method.",
                                lower_bound=1)
  launch.run(main)
