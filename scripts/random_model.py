"""Writes a model with random parameters, of a shape: 7b (Llama 2's) or tiny.

  JAX_PLATFORMS=cpu python scripts/random_model.py 7b runs/random-7b

It reads and writes tokens of the shipped Python models. 7b needs 30 GB of
memory and 14 GB of disk, and takes some minutes.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax  # noqa: E402

from models import checkpoints  # noqa: E402
from models import transformer  # noqa: E402
from models.text import tokenizers  # noqa: E402

SHAPES = {
    "7b": dict(dim=4096, num_layers=32, num_heads=32, num_kv_heads=32,
               head_dim=128, hidden_dim=11008),
    "tiny": dict(dim=64, num_layers=2, num_heads=4, num_kv_heads=4,
                 head_dim=16, hidden_dim=128)}


def main(shape, folder):
  config = transformer.Config(vocab_size=32000, tie_embeddings=False,
                              dtype="bfloat16", max_length=2048,
                              **SHAPES[shape])
  checkpoints.save(folder, config, transformer.init(jax.random.key(0), config),
                   tokenizers.load("python-target"))


if __name__ == "__main__":
  if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
    sys.exit(f"usage: random_model.py {'|'.join(SHAPES)} <new folder>")
  main(*sys.argv[1:])
