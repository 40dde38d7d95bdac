"""Converts models from and to the Hugging Face format, and texts to tables.

  python -m experiments.convert --hf=<folder or hub:owner/name> --out=<folder>
  python -m experiments.convert --to_hf=<model> --out=<folder>
  python -m experiments.convert --table=token_recycling --text=corpus.txt \\
      --target=python-target --out=table.npz

The first command reads a folder of transformers (see docs/models.md) one tensor
at a time, and writes a model that can be restored onto a mesh, with its
tokenizer. The second writes the format that a model was read from, and Llama's
for a model that was trained here; of a Gemma 3 with images only the text model
is kept. The third counts texts for methods that draft without a model, see
docs/drafts.md, "Start tables". The output appears whole or not at all.
"""

import pathlib

from absl import flags
import numpy as np

from experiments.app import launch
from experiments.data import records
from experiments.devices import model_pair
from experiments.devices import start_tables
from models import checkpoints


def main():
  given = {flag.name: flag.value or "" for flag in (HF, TO_HF, TABLE)}
  if sum(map(bool, given.values())) != 1:
    raise launch.UserError(
        f"{' and '.join(f'--{name}={x}' for name, x in given.items())}: one of "
        "them is needed.")
  if not OUT.value:
    raise launch.UserError("--out is empty: a name to write to is needed.")
  out = pathlib.Path(OUT.value)
  if out.exists():
    raise launch.UserError(f"--out={out} exists already.")
  if TABLE.value:
    return make_table(out)
  with launch.user_errors(OSError, ValueError):
    if HF.value:
      config = checkpoints.convert(launch.model_folder(HF.value), out,
                                   dtype=DTYPE.value)
    else:
      config = checkpoints.export(launch.model_folder(TO_HF.value), out,
                                  dtype=DTYPE.value)
  print(f"{out}: {config.num_layers} layers, width {config.dim}, "
        f"{config.vocab_size} tokens, {config.dtype}.")


def make_table(out):
  """Writes the start table of `--text`."""
  if not TEXT.value:
    raise launch.UserError("--text is empty: a file is needed.")
  if not start_tables.is_file(OUT.value):
    raise launch.UserError(f"--out={out}: a name that ends in .npz is needed.")
  pair = model_pair.open_pair(TARGET.value, "")
  with launch.user_errors(OSError, ValueError):
    texts = [np.array(pair.tokenizer.encode(text).ids, np.int32)
             for text in records.texts(TEXT.value, "--text")]
    table = start_tables.make(TABLE.value, texts, pair.target.vocab_size,
                              BRANCHING.value, BUCKETS.value)
    start_tables.save(out, table, pair.tokenizer)
  print(f"{out}: {start_tables.described(table)}, of {len(texts)} texts with "
        f"{sum(map(len, texts))} tokens.")


if __name__ == "__main__":
  HF = flags.DEFINE_string(
      "hf", None, "Hugging Face folder or .gguf file to convert, package:name, "
      "or hub:owner/name.")
  TO_HF = flags.DEFINE_string(
      "to_hf", None, "Folder or name of a model to write for transformers.")
  OUT = flags.DEFINE_string(
      "out", None, "Folder to write, or file of a table, .npz; must not exist.")
  DTYPE = flags.DEFINE_enum(
      "dtype", None, ["float32", "bfloat16", "float16"],
      "Type of the parameters; as stored by default.")
  TABLE = flags.DEFINE_enum("table", None, start_tables.KINDS,
                            "Method that is to begin with a table of --text.")
  TEXT = flags.DEFINE_string(
      "text", None, "File of texts: .jsonl or .json of records with a field "
      "text, or any other, which is one text; each may end with .gz.")
  TARGET = flags.DEFINE_string(
      "target", "python-target", "Model whose tokenizer and vocabulary a table "
      "is for: folder, hub:owner/name, or name of a shipped one.")
  BRANCHING = flags.DEFINE_integer("branching", 8, "Tokens that a table keeps "
                                   "of what came next.", lower_bound=1)
  BUCKETS = flags.DEFINE_integer("buckets", 16384, "Of a table for aded, for "
                                 "pairs of tokens.", lower_bound=1)
  launch.run(main)
