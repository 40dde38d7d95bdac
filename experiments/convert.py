"""Converts models from and to the Hugging Face format.

  python -m experiments.convert --hf=<folder or hub:owner/name> --out=<folder>
  python -m experiments.convert --to_hf=<model> --out=<folder>

The first command reads a folder of transformers (see docs/models.md) one tensor
at a time, and writes a model that can be restored onto a mesh, with its
tokenizer. The second writes the format that a model was read from, and Llama's
for a model that was trained here; of a Gemma 3 with images only the text model
is kept. The output folder appears whole or not at all.
"""

import pathlib

from absl import flags

from experiments.app import launch
from models import checkpoints


def main():
  if bool(HF.value) == bool(TO_HF.value):
    raise launch.UserError(f"--hf={HF.value or ''} and --to_hf="
                           f"{TO_HF.value or ''}: one of them is needed.")
  if not OUT.value:
    raise launch.UserError("--out is empty: the folder to write is needed.")
  out = pathlib.Path(OUT.value)
  if out.exists():
    raise launch.UserError(f"--out={out} exists already.")
  with launch.user_errors(OSError, ValueError):
    if HF.value:
      config = checkpoints.convert(launch.model_folder(HF.value), out,
                                   dtype=DTYPE.value)
    else:
      config = checkpoints.export(launch.model_folder(TO_HF.value), out,
                                  dtype=DTYPE.value)
  print(f"{out}: {config.num_layers} layers, width {config.dim}, "
        f"{config.vocab_size} tokens, {config.dtype}.")


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  HF = flags.DEFINE_string(
      "hf", None, "Hugging Face folder or .gguf file to convert, package:name, "
      "or hub:owner/name.")
  TO_HF = flags.DEFINE_string(
      "to_hf", None, "Folder or name of a model to write for transformers.")
  OUT = flags.DEFINE_string("out", None, "Folder to write; must not exist.")
  DTYPE = flags.DEFINE_enum(
      "dtype", None, ["float32", "bfloat16", "float16"],
      "Type of the parameters; as stored by default.")
  launch.run(main)
