"""Writes what a drafter without a model begins with: a table of a text.

  python -m experiments.start_table --method=token_recycling \\
      --text=corpus.txt --target=python-target --out=table.npz
  python -m experiments.generate --method=token_recycling --draft=table.npz \\
      --prompt="def main("

A table of token_recycling has the successors of each token that are the most
frequent ones in the text, one of aded those of each pair of tokens, and one of
suffix is the text itself. Branching and buckets must be those of the method.
"""

import pathlib

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.data import records
from experiments.devices import model_pair
from experiments.devices import start_tables


def main():
  out = pathlib.Path(OUT.value or "")
  for flag in (TEXT, OUT):
    if not flag.value:
      raise launch.UserError(f"--{flag.name} is empty: a file is needed.")
  if not start_tables.is_file(OUT.value):
    raise launch.UserError(f"--out={out}: a name that ends in .npz is needed.")
  if out.exists():
    raise launch.UserError(f"--out={out} exists already.")
  pair = model_pair.open_pair(TARGET.value, "")
  with launch.user_errors(OSError, ValueError):
    texts = [pair.tokenizer.encode(records.field(
        record, "text" if isinstance(record.value, dict) else "")).ids
             for record in records.load(TEXT.value, name="--text")]
  table = start_tables.make(
      METHOD.value, [np.array(text, np.int32) for text in texts],
      pair.target.vocab_size, BRANCHING.value, BUCKETS.value)
  with launch.user_errors(OSError):
    start_tables.save(out, table, pair.tokenizer)
  print(f"{out}: {start_tables.described(table)}, of {len(texts)} texts with "
        f"{sum(map(len, texts))} tokens.")


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  METHOD = flags.DEFINE_enum("method", "token_recycling", start_tables.KINDS,
                             "Method that begins with the table.")
  TEXT = flags.DEFINE_string(
      "text", None, "File of texts: .jsonl or .json of records with a field "
      "text, or any other, which is one text; each may end with .gz.")
  TARGET = flags.DEFINE_string(
      "target", "python-target", "Model whose tokenizer and vocabulary it is "
      "for: folder, hub:owner/name, or name of a shipped one.")
  BRANCHING = flags.DEFINE_integer("branching", 8, "Tokens that are kept of "
                                   "what came next.", lower_bound=1)
  BUCKETS = flags.DEFINE_integer("buckets", 16384, "Of aded, for pairs of "
                                 "tokens.", lower_bound=1)
  OUT = flags.DEFINE_string("out", None, "File to write, .npz; must not exist.")
  launch.run(main)
