"""Which trees can pay for how many rows, as the compiler of a TPU says.

  python -m experiments.forward_cycles --devices=v5p:2x2x1 --target=<folder> \\
      --part=8 --rows=1,16,64,256 --tokens=1,8,16,32,64 --slots=1024,4096

With `--room=16` tokens are those of a row on average, packed, and attention has
room for 16 of each row, as with `shared_budget`.

Prints the cycles that the compiler has scheduled for a forward of so many
tokens a row, and their ratio to those of one token: a tree of as many nodes
pays where it accepts more tokens a call than this. `--file=cycles.jsonl` also
keeps them, for `experiments.row_counts`. Nothing runs, and no parameters are
read. With `--part=n` it is one of n devices that share each
layer, without the time that they wait for sums.
"""

import dataclasses
import pathlib

from absl import flags

from experiments.app import launch
from experiments.app import text_tables
from experiments.devices import draft_kind
from experiments.devices import tpu_compiler
from experiments.evaluation import results_store
from models import transformer
from models.transformer import quantization


def main():
  # First, before anything uses JAX.
  device = tpu_compiler.devices(DEVICES.value)[0]
  rows, tokens, slots = (launch.numbers(x) for x in (ROWS, TOKENS, SLOTS))
  config = part(draft_kind.architecture(
      TARGET.value, DTYPE.value, quantization.DTYPE), PART.value)
  lines = [["slots", "rows", "a token, cycles",
            *(f"{n} tokens" for n in tokens)]]
  for size in slots:
    for batch in rows:
      token = count(config, device, batch, 1, size, 0)
      ratios = [1 if n == 1 else count(config, device, batch, n, size,
                                       ROOM.value) / token for n in tokens]
      lines.append([str(size), str(batch), f"{token:,}",
                    *(f"{x:.2f}" for x in ratios)])
      print(text_tables.plain_table(lines), end="\n\n", flush=True)


def count(config, device, rows, tokens, slots, room):
  """Counts the cycles of a forward, and keeps them in `--file`."""
  cycles = tpu_compiler.forward_cycles(
      config, device, rows, room or tokens, slots,
      packed=round(tokens * rows) * bool(room))
  if FILE.value:
    results_store.append(pathlib.Path(FILE.value), dict(
        slots=slots, rows=rows, tokens=tokens, room=room, cycles=cycles))
  return cycles


def part(config, number):
  """Returns the sizes that one of so many devices has of each layer.

  Args:
    config: architecture of a model.
    number: n, of devices.

  Raises:
    UserError: if they do not divide heads, hidden units and vocabulary.
  """
  sizes = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
           "hidden_dim": config.hidden_dim, "vocab_size": config.vocab_size}
  for name, size in sizes.items():
    if size % number:
      raise launch.UserError(f"--part={number} does not divide {name}={size} "
                             "of the target.")
  return dataclasses.replace(config, **{
      name: size // number for name, size in sizes.items()})


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  DEVICES = flags.DEFINE_string("devices", "v5p:2x2x1",
                                "TPUs to compile for, such as v5e:2x2.")
  TARGET = flags.DEFINE_string("target", "python-target", "Folder of the "
                               "target, or name of a shipped one.")
  DTYPE = flags.DEFINE_enum("dtype", "bfloat16", transformer.DTYPES,
                            "Of parameters and caches.")
  PART = flags.DEFINE_integer("part", 1, "Devices that share a layer.",
                              lower_bound=1)
  ROWS = flags.DEFINE_list("rows", ["1", "16"], "Rows of a batch.")
  TOKENS = flags.DEFINE_list("tokens", ["1", "8", "16"], "Tokens of a row.")
  ROOM = flags.DEFINE_integer("room", 0, "Tokens that a row may have where "
                              "those of all rows are packed; 0: they are not.",
                              lower_bound=0)
  SLOTS = flags.DEFINE_list("slots", ["1024"], "Slots of a cache.")
  FILE = flags.DEFINE_string("file", "", "Where cycles are added as lines of "
                             "JSON; '' for nowhere.")
  launch.run(main)
