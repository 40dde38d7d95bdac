"""Compares a prefix that rows share with one that each of them repeats.

  python -m experiments.prefix_sharing --rows=1,16,64
  python -m experiments.prefix_sharing --rows=1,16,64,256 --tokens=1,13 \\
      --target=<folder> --dtype=bfloat16 --devices=v5e:2x2

Prints the memory of keys and values, counted from shapes, and measures both in
turn: seconds until the first token of each row, and tokens a second of all rows
after it, by greedy decoding. With `--devices` nothing runs: a TPU's compiler
schedules the cycles of a forward of so many tokens a row.

Of the target only the architecture is read, since neither depends on its
parameters, which are random; `max_length` is as long as is needed.
"""

import dataclasses
import functools
import time
from typing import NamedTuple

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.runtime import prefill
from experiments.app import launch
from experiments.app import text_tables
from experiments.devices import draft_kind
from experiments.devices import tpu_compiler
from models import transformer
from models.transformer import quantization

_MIB = 2**20


class Sizes(NamedTuple):
  """Tokens of a row.

  Attributes:
    prefix: what rows share.
    own: its prompt after that.
    new: what is generated.
  """
  prefix: int
  own: int
  new: int

  def slots(self, shared) -> int:
    """Returns the slots of a cache that has so many tokens in common."""
    return prefill.capacity(self.prefix + self.own, self.new, shared)

  def both(self):
    """Returns the numbers of tokens that are kept once, in both cases."""
    return 0, self.prefix


def main():
  sizes = Sizes(PREFIX.value, OWN.value, NEW.value)
  config = dataclasses.replace(
      draft_kind.architecture(TARGET.value, DTYPE.value, quantization.DTYPE),
      max_length=sum(sizes))
  rows, tokens = (launch.numbers(x) for x in (ROWS, TOKENS))
  if DEVICES.value:
    device = tpu_compiler.devices(DEVICES.value)[0]
    names = [f"cycles of {n}" for n in tokens]
    figures = functools.partial(cycles, config, sizes, device, tokens)
  else:
    names = ["s to the first", "tokens/s after it"]
    figures = functools.partial(
        seconds, config, sizes, transformer.init(jax.random.key(0), config),
        ROUNDS.value)
  lines = [["rows", "caches, MiB", "shared", *(
      x for name in names for x in (name, "shared"))]]
  for batch in rows:
    memory = [f"{num_bytes(config, sizes, batch, x) / _MIB:,.1f}"
              for x in sizes.both()]
    lines.append([str(batch), *memory, *figures(batch)])
    print(text_tables.plain_table(lines), end="\n\n", flush=True)


def num_bytes(config, sizes, batch, shared) -> int:
  """Returns the bytes of keys and values of a batch."""
  lm = transformer.language_model(config)
  caches = jax.eval_shape(lambda: (
      lm.init_cache(batch, sizes.slots(shared) - shared),
      lm.init_cache(1, shared)))
  return sum(x.size * x.dtype.itemsize for cache in caches
             for x in (*cache.keys, *cache.values))


def cycles(config, sizes, device, tokens, batch) -> list[str]:
  """Returns cycles of forwards, of each size repeated and shared."""
  count = functools.partial(tpu_compiler.forward_cycles, config, device, batch)
  return [f"{count(size, sizes.slots(shared), shared):,}"
          for size in tokens for shared in sizes.both()]


def seconds(config, sizes, params, rounds, batch) -> list[str]:
  """Returns the seconds of first tokens, and the rates of those after them.

  Both repeated and shared. First tokens are timed by calls that end with them.
  """
  rng = np.random.default_rng(0)
  prefix, own = (rng.integers(config.vocab_size, size=size).astype(np.int32)
                 for size in (sizes.prefix, (batch, sizes.own)))
  whole = np.concatenate([np.tile(prefix, (batch, 1)), own], axis=1)

  def generate(shared, new):
    prompts = own if shared else whole
    start = time.perf_counter()
    jax.block_until_ready(dj.generate(
        jax.random.key(0), prompts, np.full(batch, prompts.shape[1]),
        method=dj.methods.autoregressive(), max_new_tokens=new,
        target=transformer.language_model(config), target_params=params,
        sampling=dj.Sampling(temperature=0.0),
        shared_prefix=prefix if shared else None))
    return time.perf_counter() - start

  calls = [(shared, new) for new in (1, sizes.new) for shared in sizes.both()]
  for call in calls:  # Compiles.
    generate(*call)
  first, first_shared, last, last_shared = np.median(
      [[generate(*call) for call in calls] for _ in range(rounds)],
      axis=0)
  count = batch * (sizes.new - 1)
  rates = count / (last - first), count / (last_shared - first_shared)
  return [f"{first:.2f}", f"{first_shared:.2f}", *map("{:,.0f}".format, rates)]


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  TARGET = flags.DEFINE_string("target", "python-target", "Folder of the "
                               "target, or name of a shipped one.")
  DTYPE = flags.DEFINE_string("dtype", "float32", "Of parameters and caches.")
  ROWS = flags.DEFINE_list("rows", ["1", "16", "64"], "Rows of a batch.")
  PREFIX = flags.DEFINE_integer("prefix", 2048, "Tokens that rows share.",
                                lower_bound=1)
  OWN = flags.DEFINE_integer("own", 32, "Tokens of a row's prompt after them.",
                             lower_bound=1)
  NEW = flags.DEFINE_integer("new", 65, "Tokens to generate.", lower_bound=2)
  TOKENS = flags.DEFINE_list("tokens", ["1"], "Tokens of a row in a forward "
                             "whose cycles are counted.")
  ROUNDS = flags.DEFINE_integer("rounds", 3, "Timings, of which the median is "
                                "printed.", lower_bound=1)
  DEVICES = flags.DEFINE_string("devices", "", "TPUs to compile for, such as "
                                "v5e:2x2; '' measures on this machine.")
  launch.run(main)
